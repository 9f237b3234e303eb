"""Train LeNet on handwritten digits with NumPy and vlug alone: no framework, gradients by explicit calls.

The images are scikit-learn's (1797 of 8×8 pixels, enlarged to 16×16); 360 are kept for the test.
"""

import time

import numpy as np
from sklearn.datasets import load_digits

import vlug

Arrays = dict[str, np.ndarray]


def digits(seed: int = 0) -> tuple[np.ndarray, ...]:
    """Images to train and to test on (N×1×16×16, mean 0, variance 1), then their labels (int64)."""
    images, labels = load_digits(return_X_y=True)
    x = images.reshape(-1, 1, 8, 8).repeat(2, 2).repeat(2, 3).astype(np.float32)
    x = (x - x.mean()) / x.std()
    order = np.random.default_rng(seed).permutation(len(x))
    train, test = order[360:], order[:360]
    return x[train], x[test], labels[train].astype(np.int64), labels[test].astype(np.int64)


def parameters(seed: int = 0) -> Arrays:
    """LeNet-5 for 16×16 pixels: 1 → 6 → 16 channels, then 256 → 120 → 84 → 10. Weights by He."""
    rng = np.random.default_rng(seed)
    shapes = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5)}
    shapes |= {"fc1": (120, 256), "fc2": (84, 120), "fc3": (10, 84)}
    made = {}
    for name, shape in shapes.items():
        spread = (2 / np.prod(shape[1:])) ** 0.5
        made[f"{name}.w"] = (rng.standard_normal(shape) * spread).astype(np.float32)
        made[f"{name}.b"] = np.zeros(shape[0], np.float32)
    return made


def forward(p: Arrays, x: np.ndarray) -> tuple[np.ndarray, Arrays]:
    """The logits, and what the backward pass needs."""
    k: Arrays = {"x": x}
    k["c1"] = vlug.relu(vlug.conv2d(x, p["conv1.w"], p["conv1.b"], padding=2))
    k["p1"], k["i1"] = vlug.max_pool2d(k["c1"], 2, return_index=True)
    k["c2"] = vlug.relu(vlug.conv2d(k["p1"], p["conv2.w"], p["conv2.b"], padding=2))
    k["p2"], k["i2"] = vlug.max_pool2d(k["c2"], 2, return_index=True)
    k["flat"] = k["p2"].reshape(len(x), -1)
    k["h1"] = vlug.relu(vlug.linear(k["flat"], p["fc1.w"], p["fc1.b"]))
    k["h2"] = vlug.relu(vlug.linear(k["h1"], p["fc2.w"], p["fc2.b"]))
    return vlug.linear(k["h2"], p["fc3.w"], p["fc3.b"]), k


def backward(p: Arrays, k: Arrays, logits: np.ndarray, labels: np.ndarray) -> Arrays:
    """Gradients of the mean cross entropy by the parameters' names."""
    g: Arrays = {}
    d = vlug.cross_entropy_backward(np.ones((), logits.dtype), logits, labels)
    d, g["fc3.w"], g["fc3.b"] = vlug.linear_backward(d, k["h2"], p["fc3.w"])
    d, g["fc2.w"], g["fc2.b"] = vlug.linear_backward(vlug.relu_backward(d, k["h2"]), k["h1"], p["fc2.w"])
    d, g["fc1.w"], g["fc1.b"] = vlug.linear_backward(vlug.relu_backward(d, k["h1"]), k["flat"], p["fc1.w"])
    d = vlug.max_pool2d_backward(d.reshape(k["p2"].shape), k["i2"], k["c2"].shape[2:], 2)
    d = vlug.relu_backward(d, k["c2"])
    d, g["conv2.w"], g["conv2.b"] = vlug.conv2d_backward(d, k["p1"], p["conv2.w"], padding=2)
    d = vlug.max_pool2d_backward(d, k["i1"], k["c1"].shape[2:], 2)
    d = vlug.relu_backward(d, k["c1"])
    _, g["conv1.w"], g["conv1.b"] = vlug.conv2d_backward(d, k["x"], p["conv1.w"], padding=2)
    return g


def main(epochs: int = 8, batch: int = 64) -> float:
    """Trains, prints, and gives the accuracy on the images kept for the test."""
    started = time.perf_counter()
    x_train, x_test, y_train, y_test = digits()
    p = parameters()
    names = list(p)
    m, v = ([np.zeros_like(p[n]) for n in names] for _ in range(2))
    rng, step, accuracy = np.random.default_rng(1), 0, 0.0
    steps = epochs * -(-len(x_train) // batch)
    for epoch in range(epochs):
        total = 0.0
        for at in np.array_split(rng.permutation(len(x_train)), -(-len(x_train) // batch)):
            logits, kept = forward(p, x_train[at])
            total += float(vlug.cross_entropy(logits, y_train[at])) * len(at)
            g = backward(p, kept, logits, y_train[at])
            step += 1
            rate = 2e-3 * (1 - step / steps) + 1e-5
            vlug.adam_step([p[n] for n in names], [g[n] for n in names], m, v, step=step, lr=rate)
        accuracy = float((forward(p, x_test)[0].argmax(1) == y_test).mean())
        print(f"epoch {epoch + 1}: loss {total / len(x_train):.4f}, test accuracy {accuracy:.1%}")
    print(f"{time.perf_counter() - started:.1f} s")
    return accuracy


if __name__ == "__main__":
    main()
