"""What scripts/structure reads of a file."""

import importlib.machinery
import importlib.util
import unittest
import unittest.mock
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


class WithoutInline(unittest.TestCase):
    def test_a_module_in_the_file_reaches_the_file_by_super_and_what_is_above_it_by_another_one(self):
        text = "use super::A;\nmod b {\n    use super::{C, d::super_::D};\n    use super::super::E;\n}\npub(crate) mod f {\n    use super::G;\n}\nuse super::H;\n"
        found = "use super::A;\nmod b {\n    use self::{C, d::super_::D};\n    use super::E;\n}\npub(crate) mod f {\n    use self::G;\n}\nuse super::H;\n"
        self.assertEqual(structure.without_inline(text), found)


class NotToBe(unittest.TestCase):
    def test_a_circle_is_none_too_many_outside_the_folders_that_are_to_have_none(self):
        circles = [["log", "log::sink"], ["across", "shard::hub"]]
        self.assertEqual(structure.not_to_be("server", circles), circles[1:])
        self.assertEqual(structure.not_to_be("datapath", circles), circles)
        self.assertEqual(structure.not_to_be("engine", circles), [])


class Rooms(unittest.TestCase):
    CHAIN = "Door::open\n    Hall::enter\n        Stairs::climb\n    Door::close\n"
    DOOR = "impl Door {\n    fn open(&self) { self.hall.enter(|| {}); self.close() }\n    fn close(&self) {}\n}\n"
    HALL = "impl<R: Room> Way for Hall<R> {\n    fn enter(&self) -> u8 {\n        Stairs::climb::<u8>(1)\n    }\n}\n"
    STAIRS = "impl Stairs {\n    fn climb(&self) {}\n}\n"

    def broken(self, *texts):
        return structure.broken(self.CHAIN, structure.bodies(texts))

    def test_a_chain_holds_where_each_function_is_of_its_type_and_called_by_the_one_above_and_further_left(self):
        self.assertIsNone(self.broken(self.DOOR, self.HALL, self.STAIRS))

    def test_a_function_that_stands_in_another_type_breaks_it(self):
        self.assertEqual(self.broken(self.DOOR, self.HALL, self.STAIRS.replace("Stairs", "Lift")), "no impl of Stairs has a function climb")

    def test_a_call_that_is_not_made_breaks_it(self):
        self.assertEqual(self.broken(self.DOOR.replace("self.close()", ""), self.HALL, self.STAIRS), "Door::open does not call close")
        self.assertEqual(self.broken(self.DOOR, self.HALL.replace("climb::<u8>", "climbed"), self.STAIRS), "Hall::enter does not call climb")

    def test_a_call_of_the_next_function_of_a_file_is_not_one_of_the_function_before_it(self):
        hall = self.HALL.replace("Stairs::climb::<u8>(1)", "1").replace("    }\n}", "    }\n    fn leave(&self) { Stairs::climb(1) }\n}")
        self.assertEqual(self.broken(self.DOOR, hall, self.STAIRS), "Hall::enter does not call climb")

    def test_the_newest_chain_that_holds_is_taken_and_each_type_counts_once(self):
        newest = "Door::open\n    Lift::enter\n"
        with unittest.mock.patch.object(structure, "CHAINS", {"up": [newest, self.CHAIN]}):
            self.assertEqual(list(structure.rooms([self.DOOR, self.HALL, self.STAIRS])), [("up", ["Door", "Hall", "Stairs"], None)])
            self.assertEqual(list(structure.rooms([self.DOOR])), [("up", [], "no impl of Lift has a function enter")])


class Topics(unittest.TestCase):
    def test_no_line_of_an_option_file_is_wider_than_what_rustfmt_formats(self):
        # One string past the limit, and rustfmt leaves all rows of its table as they are, without a word.
        folder = Path(__file__).parent.parent / "crates/config/src/topics"
        wide = [
            f"{path.relative_to(folder)}:{number}"
            for path in sorted(folder.rglob("*.rs"))
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if len(line) > 100 and not line.lstrip().startswith("//")
        ]
        self.assertEqual(wide, [])


if __name__ == "__main__":
    unittest.main()
