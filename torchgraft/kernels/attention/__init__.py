"""Attention without the matrix of scores: softmax(scale q k' + bias) v, block by block, and its gradients; and what is
done with scores where matrix products make them.

A module for each way, besides what they share: `variant`, what is fixed in the text. Numbers of elements and strides
are arguments; the heads' sizes are literals, since they size arrays.
"""

from __future__ import annotations
