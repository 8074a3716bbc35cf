"""What edits.py changes, and what trials.py takes for a test that failed on its assertion: python3 -m unittest discover -s scripts"""

import os
import tempfile
import types
import unittest

import edits
import trials

SOURCE = """\
fn a(peer: &'a str) -> bool {
    // guard: both, other
    if !permits(peer, ')')
        && b { return Err('x'); }
    match k {
        // guard: arm
        K::Own if a.b() => return own(Err(F)),
        // mutant: block
        K::B { c } => {
            x();
        }
    }
    // guard: let
    let x: M<A, B> = z::<A, B>(a, b)
        .foo()
        // guard: link
        .filter(|x| x > "/* ;");
    // guard: else
    let Some(q) = foo(x) else { return };
    level |= STEPS; // guard: behind
    // guard: tail
    a.b(3) && q
}
"""


def edited(name, line):
    edit = edits.Edit(line, name)
    return edits.Node(SOURCE, edits.begin_of(SOURCE, name)).edited(edit.verb, edit.text)


class AnEdit(unittest.TestCase):
    def changes(self, name, line, old, new):
        self.assertEqual(SOURCE.count(old), 1, old)
        self.assertEqual(edited(name, line), SOURCE.replace(old, new))

    def test_replaces_conditions_of_statements_and_arms(self):
        self.changes("both", "condition false", "!permits(peer, ')')\n        && b", "false")
        self.changes("other", "condition $ && c", "')')\n        && b", "')')\n        && b && c")
        self.changes("arm", "condition false", "if a.b()", "if false")

    def test_replaces_values(self):
        self.changes("arm", "value {}", "return own(Err(F))", "{}")
        self.changes("let", "value 3", 'z::<A, B>(a, b)\n        .foo()\n        // guard: link\n        .filter(|x| x > "/* ;")', "3")
        self.changes("else", "value None", "foo(x) else", "None else")
        self.changes("behind", "value 0", "STEPS", "0")

    def test_deletes_statements_arms_and_calls(self):
        self.changes("both", "delete", "if !permits(peer, ')')\n        && b { return Err('x'); }", "")
        self.changes("block", "delete", "K::B { c } => {\n            x();\n        }", "")
        self.changes("link", "delete", '.filter(|x| x > "/* ;")', "")
        self.changes("behind", "delete", "level |= STEPS;", "")

    def test_replaces_the_whole_and_swaps_tokens_whatever_the_space_between_them(self):
        self.changes("tail", "replace true", "a.b(3) && q", "true")
        self.changes("tail", "swap b( 3 ) ~> c", "b(3)", "c")

    def test_says_why_it_cannot_be_made(self):
        for name, line in (("tail", "swap missing ~> c"), ("tail", "condition false"), ("gone", "delete"), ("tail", "replace a.b(3) && q")):
            with self.assertRaises(edits.EditError, msg=line):
                edited(name, line)
        for line in ("turn around", "delete this", "condition"):
            with self.assertRaises(edits.EditError, msg=line):
                edits.Edit(line, "tail")

    def test_needs_a_place_that_is_named_once(self):
        with tempfile.TemporaryDirectory() as tree:
            os.makedirs(os.path.join(tree, "crates"))
            for name, names in (("a.rs", "once, twice"), ("b.rs", "twice")):
                with open(os.path.join(tree, "crates", name), "w", encoding="utf-8") as file:
                    file.write(f"// guard: {names}\nx();\n")
            places = edits.Places(tree)
            self.assertEqual(places.file_of("once"), "crates/a.rs")
            for name in ("twice", "never"):
                self.assertRaises(edits.EditError, places.file_of, name)


FAILED = """
running 1 test
test m::a_test ... FAILED

failures:

---- m::a_test stdout ----

thread 'm::a_test' (7) panicked at {place}:2:5:
assertion `left == right` failed


failures:
    m::a_test

test result: FAILED. 0 passed; 1 failed
"""


class AFailure(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = types.SimpleNamespace(path=folder.name)

    def judged(self, code, output, name="m::a_test"):
        return trials.judge_failure(code, output, name, self.tree)[0]

    def test_counts_if_the_named_test_panicked_in_code_of_tests(self):
        self.assertTrue(self.judged(101, FAILED.format(place="crates/a/tests/b.rs")))
        self.assertTrue(self.judged(101, FAILED.format(place="crates/a/src/b/tests.rs")))
        self.assertTrue(self.judged(101, FAILED.format(place="crates/a/tests/b.rs"), "a_test"), "named as cargo takes names")
        self.assertFalse(self.judged(101, FAILED.format(place="crates/a/tests/b.rs"), "m::another"))

    def test_does_not_count_if_the_code_under_test_panicked(self):
        self.assertFalse(self.judged(101, FAILED.format(place="crates/a/src/b.rs")))

    def test_does_not_count_if_only_another_thread_panicked(self):
        provoked = FAILED.replace("thread 'm::a_test'", "thread 'shard 0'").format(place="crates/a/src/b/tests.rs")
        self.assertFalse(self.judged(101, provoked))
        own = "\nthread 'm::a_test' (7) panicked at crates/a/tests/b.rs:3:5:\nthe call ended\n"
        both = provoked.replace("\n\n\nfailures:", own + "\n\nfailures:")
        self.assertTrue(self.judged(101, both))

    def test_is_told_without_the_path_of_the_tree(self):
        output = FAILED.format(place="crates/a/tests/b.rs").replace("left == right", f"at {self.tree.path}/crates/a")
        self.assertEqual(trials.judge_failure(101, output, "a_test", self.tree)[1], "crates/a/tests/b.rs:2: assertion `at /crates/a` failed")

    def test_does_not_count_if_no_test_failed(self):
        for code, output in ((None, FAILED.format(place="crates/a/tests/b.rs")), (0, "ok. 1 passed"), (101, "error: could not compile"), (134, "signal: 6")):
            self.assertFalse(self.judged(code, output), output)


if __name__ == "__main__":
    unittest.main()
