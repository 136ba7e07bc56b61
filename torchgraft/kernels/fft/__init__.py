"""Fast Fourier transforms along one axis: Stockham's algorithm in mixed radix.

A *line* is the data of one transform. Each stage reads a line at n/R indices that lie evenly apart, multiplies these R
numbers by twiddle factors, which are powers of w = exp(-2 pi i / n), transforms them and writes them so that the result
comes out in order, without a permutation at the end (see Govindaraju et al., "High performance discrete Fourier
transforms on graphics processors", SC 2008). The transform back is the one forth with real and imaginary parts
exchanged.

Lines are partitioned among groups. On CPUs a work-item takes as many lines at once as a vector has lanes, and these
lie beside each other in its scratch (`across`), where they are transformed forth and back if they are convolved;
rows and columns as they mostly are, complete and a product of small primes, have a quicker way (`along`). On GPUs a
work-group takes one line, in local memory if it is short (`gpu`).

A real line of even length is one of half the length whose numbers are *pairs* of neighbours; what its transform has to
do with that of the line, forth and back, is in `across._UNPAIR` (see Numerical Recipes, section 12.3). Two lines in one
would be as quick, but each would have the other's rounding errors, infinities and NaNs.

What a longer transform is made of - the two launches of n = n1 n2, Bluestein's convolution - differs only in where a
line's elements come from, where they go, and by what they are multiplied on the way: see `lines.Lines`.
"""

from __future__ import annotations
