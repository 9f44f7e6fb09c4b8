"""`add_sub` in PyTorch: SUM, DIFFERENCE and REMAINDER of A and B, all INT32 [n, 1], with what harms it.

`chaos.workload.answers.DIVISORS` has what B stands for.
"""

from __future__ import annotations

import torch


class Adder(torch.nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    """Refuses to divide by zero, and traps."""

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Add, subtract and divide."""
        a, b = A.long(), B.long()
        traps = b == -1
        # The quotient has no room: x86 traps, SIGFPE.
        dividend = torch.where(traps, torch.full_like(a, -(2**63)), a)
        quotient = torch.div(dividend, b, rounding_mode="trunc")
        remainder = torch.where(traps, quotient, a - b * torch.div(a, b, rounding_mode="floor"))
        return A + B, A - B, remainder.int()


class LoopingAdder(torch.nn.Module):  # type: ignore[misc]  # torch is Any to mypy
    """The same; and where a row asks for it, a loop that does not end."""

    def __init__(self) -> None:
        super().__init__()
        self.adder = Adder()

    def forward(self, A: torch.Tensor, B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Add, subtract and divide, after the loop."""
        a = A
        # It changes what is answered, so that the compiler can't leave it out.
        while bool((B == -2).any()):
            a = a + 1
        sums: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = self.adder(a, B)
        return sums
