"""Sorting and what follows from it: what is asked for, the tables of ways to do it, and the planners of the ops."""

from __future__ import annotations

from torchgraft.ops.sorting import planners as planners
