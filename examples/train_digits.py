"""Train a small residual network on handwritten digits: plain PyTorch, which knows nothing of vlug.

Run it as any script, or under `vlug try` to see what vlug makes of it.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


class Block(nn.Module):
    """Two 3×3 convolutions with batch norm, and a way round them."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(k)
        self.conv2 = nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(k)
        same = stride == 1 and c == k
        self.skip = nn.Identity() if same else nn.Conv2d(c, k, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.skip(x))


def digits(size: int = 32) -> tuple[torch.Tensor, ...]:
    """Training images, test images (N×1×size×size, mean 0, variance 1), and their labels."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)
    x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
    x = (x - x.mean()) / x.std()
    return tuple(train_test_split(x, torch.tensor(labels), test_size=360, random_state=0))


def main(epochs: int = 3, batch: int = 64) -> None:
    torch.manual_seed(0)
    x_train, x_test, y_train, y_test = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(x_train) // batch))
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for chosen in torch.randperm(len(x_train)).split(batch):
            loss = F.cross_entropy(model(x_train[chosen]), y_train[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)
        model.eval()
        with torch.inference_mode():
            accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
        print(f"epoch {epoch + 1}: loss {total / len(x_train):.4f}, test accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
