"""How well the lab's predictions do where the truth was published."""
