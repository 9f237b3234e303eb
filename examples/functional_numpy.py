"""Eager calls on NumPy arrays: a convolution, its gradients, and a check against the definition."""

import numpy as np

import vlug

rng = np.random.default_rng(0)
x = rng.standard_normal((8, 16, 28, 28)).astype(np.float32)
w = rng.standard_normal((32, 16, 3, 3)).astype(np.float32)

y = vlug.relu(vlug.conv2d(x, w, padding=1))
print("y", y.shape, y.dtype)

dy = np.ones_like(y)
dx, dw = vlug.conv2d_backward(dy, x, w, padding=1)[:2]
print("dx", dx.shape, "dw", dw.shape)

# One output, by hand: channel 5 of pixel (10, 20) of image 3.
want = np.maximum((x[3, :, 9:12, 19:22].astype(np.float64) * w[5]).sum(), 0)
print("error", abs(y[3, 5, 10, 20] - want))

try:
    vlug.conv2d(x, w[:, :15])
except vlug.ShapeError as e:
    print("refused:", e)
