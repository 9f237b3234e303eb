"""`vlug demo`: a small network on real images and one ResNet-50 step, stock and with vlug."""
