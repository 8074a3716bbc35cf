"""What stands in the blocks of the pages about databases, so that the tests carry out what an operator reads."""

import re
import shlex
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "docs/operating"


def block(heading: str, language: str, page: str = "databases.md", number: int = 0) -> str:
    """The block of this language and number below a heading."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", (_FOLDER / page).read_text(), re.DOTALL | re.MULTILINE)
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```", section, re.DOTALL | re.MULTILINE)
    assert len(found) > number, f"{page}: no block of {language} below {heading}"
    return found[number]


def headings(language: str, page: str = "databases.md") -> list[str]:
    """The headings below which there is a block of this language."""
    sections = (_FOLDER / page).read_text().split("\n## ")[1:]
    return [section.partition("\n")[0] for section in sections if f"```{language}\n" in section]


def lines(heading: str, language: str, page: str = "databases.md", number: int = 0) -> list[str]:
    return [line.strip() for line in block(heading, language, page, number).splitlines()]


def value(heading: str, key: str) -> str:
    """The value of a key in the configuration below a heading."""
    (found,) = [line.partition("=")[2] for line in lines(heading, "conf") if line.startswith(f"{key}=")]
    return found


def arguments(heading: str) -> list[str]:
    """What follows `turnadmin` in the first command below a heading."""
    name, *words = shlex.split(lines(heading, "sh")[0])
    assert name == "turnadmin", name
    return words
