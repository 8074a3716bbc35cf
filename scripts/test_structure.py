"""What scripts/structure reads of a file."""

import importlib.machinery
import importlib.util
import unittest
from pathlib import Path

LOADER = importlib.machinery.SourceFileLoader("structure", str(Path(__file__).with_name("structure")))
structure = importlib.util.module_from_spec(importlib.util.spec_from_loader("structure", LOADER))
LOADER.exec_module(structure)


class WithoutTests(unittest.TestCase):
    def test_what_looks_like_a_comment_in_a_string_hides_nothing_behind_it(self):
        text = 'const A: &str = "https://example.org";\nstruct B {\n    c: char, // "\n}\nconst D: char = \'"\';\nstruct E<\'e> { f: &\'e str }\n'
        left = structure.without_tests(text)
        for word in ("struct B", "struct E<'e>", "&'e str"):
            self.assertIn(word, left)
        self.assertNotIn("example", left)


if __name__ == "__main__":
    unittest.main()
