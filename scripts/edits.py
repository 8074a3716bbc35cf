"""Takes guards out of the code and puts bugs into it, at places that comments in the code name.

A place is a comment on a line of its own above the code, or at the end of its first line:

    // guard: V-13-send
    if !allocation.permissions.permits(peer.ip(), now) {

`guard:` names files of crates/turnbuckle/tests/guards, `mutant:` entries of crates/sim/mutants; commas separate several names.
What is done there is a line of those files, `VERB [@PLACE] [RUST]`. PLACE is the entry's own name unless it is given. The verbs:

    condition RUST     the condition of the first `if` or `while`, also of a match arm
    value RUST         what stands behind `=`, `+=`, `=>`, `return`, or the colon of a field
    replace RUST       the whole: a statement, an item, an arm, an element, a tail expression, a method call (`.filter(...)`), an operand (`&& ...`)
    delete             the whole, with the semicolon or comma behind it
    swap OLD ~> NEW    the tokens OLD, which are there once

In RUST, `$` is what was there. Space and comments play no part, so that neither formatting nor the code around a place matters.
The same goes for C, where the statement is one that Rust has too.
"""

import glob
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VERBS = ("condition", "value", "replace", "delete", "swap")
PLACE = re.compile(r"//\s*(?:guard|mutant):\s*([\w.+-]+(?:,\s*[\w.+-]+)*)[ \t]*$", re.M)
TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*)
    |(?P<block>/\*)
    |(?P<raw>[bc]?r(?P<hashes>\#*)".*?"(?P=hashes))
    |(?P<string>[bc]?"(?:\\.|[^"\\])*")
    |(?P<char>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^'\\\n])')
    |(?P<lifetime>'\w+)
    |(?P<word>(?:r\#)?\w+)
    |(?P<sign>\.\.=|\.\.\.|<<=|>>=|=>|==|<=|>=|!=|&&|\|\||->|::|\.\.|\+=|-=|\*=|/=|%=|\^=|&=|\|=|.)
    """,
    re.X | re.S,
)
CLOSER_BY_OPENER = {"(": ")", "[": "]", "{": "}"}
CLOSERS = set(CLOSER_BY_OPENER.values())
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "^=", "&=", "|=", "=>"}
OPERATORS = {"&&", "||", "==", "!=", "<=", ">=", "+", "-", "*", "/", "="}
WITH_BLOCK = {"if", "while", "for", "match", "loop", "unsafe", "fn", "pub", "impl", "mod", "struct", "enum", "{"}
DECLARES = {"let", "const", "static", "fn", "pub", "impl", "use", "type"}


class EditError(Exception):
    """Why an edit cannot be made."""


class Token:
    def __init__(self, text, start, end):
        self.text, self.start, self.end = text, start, end


def tokens_of(source):
    """The tokens of Rust source from its beginning, without space and comments."""
    tokens, at = [], 0
    while at < len(source):
        match = TOKEN.match(source, at)
        if match.lastgroup == "block" or match.group("block"):
            at = end_of_block_comment(source, at)
            continue
        if not match.group("space"):
            tokens.append(Token(match.group(), match.start(), match.end()))
        at = match.end()
    return tokens


def end_of_block_comment(source, at):
    depth = 0
    for mark in re.compile(r"/\*|\*/").finditer(source, at):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(source)


def group_end(tokens, index):
    """The index behind the bracket that closes the one at `index`."""
    depth = 0
    for at in range(index, len(tokens)):
        depth += (tokens[at].text in CLOSER_BY_OPENER) - (tokens[at].text in CLOSERS)
        if depth == 0:
            return at + 1
    raise EditError("a bracket is not closed")


def generics_end(tokens, index):
    """The index behind the `>` that closes the `<` at `index`."""
    depth = 0
    for at in range(index, len(tokens)):
        depth += {"<": 1, ">": -1}.get(tokens[at].text, 0)
        if depth == 0:
            return at + 1
    raise EditError("a list of generic arguments is not closed")


def steps(tokens, index):
    """Yields the indexes of the tokens outside of brackets, from `index` to the bracket that closes what is around them."""
    while index < len(tokens) and tokens[index].text not in CLOSERS:
        yield index
        if tokens[index].text in CLOSER_BY_OPENER:
            index = group_end(tokens, index)
        elif tokens[index].text == "::" and index + 1 < len(tokens) and tokens[index + 1].text == "<":
            index = generics_end(tokens, index + 1)
        else:
            index += 1


class Node:
    """Code that begins at a place: tokens[first:last], and perhaps the semicolon or comma behind it."""

    def __init__(self, source, offset):
        self.source = source
        self.tokens = tokens_of(source)
        self.first = next((at for at, token in enumerate(self.tokens) if token.start >= offset), None)
        if self.first is None:
            raise EditError("no code follows")
        self.last, self.is_terminated = self.end()
        if self.last == self.first:
            raise EditError("no code follows in this block")

    def end(self):
        tokens, first = self.tokens, self.first
        head = tokens[first].text
        if head in ("&&", "||"):
            return self.end_before({"&&", "||", "{", "=>"}), False
        if head in (".", "?"):
            return self.end_before({".", "?", "{", "=>", "else"} | OPERATORS), False
        begins = first
        while tokens[begins].text == "#":
            begins = group_end(tokens, begins + 1)
        head = tokens[begins].text
        before = None
        for at in steps(tokens, begins):
            text = tokens[at].text
            if text == ";" or (text == "," and head not in DECLARES):
                return at, True
            if text == "{" and (head in WITH_BLOCK or before == "=>"):
                behind = group_end(tokens, at)
                then = tokens[behind].text if behind < len(tokens) else ""
                if then not in ("else", ".", "?") and not (then in OPERATORS and head not in WITH_BLOCK):
                    return behind, then == "," and before == "=>"
            before = text
            last = at
        return self.behind(last), False

    def end_before(self, stops):
        last = self.first
        for at in steps(self.tokens, self.first):
            if at > self.first and self.tokens[at].text in stops | {";", ","}:
                break
            last = at
        return self.behind(last)

    def behind(self, at):
        tokens = self.tokens
        return group_end(tokens, at) if tokens[at].text in CLOSER_BY_OPENER else at + 1

    def outer(self, begin=None):
        return [at for at in steps(self.tokens, self.first if begin is None else begin) if at < self.last]

    def condition(self):
        begin = next((at + 1 for at in self.outer() if self.tokens[at].text in ("if", "while")), None)
        if begin is None:
            raise EditError("no condition follows")
        end = next((at for at in self.outer(begin) if self.tokens[at].text in ("{", "=>")), None)
        if end is None:
            raise EditError("the condition has no end")
        return begin, end

    def value(self):
        begin = None
        for signs in (ASSIGNMENTS | {"return", "break"}, {":"}):
            begin = begin or next((at + 1 for at in self.outer() if self.tokens[at].text in signs), None)
        if begin is None:
            raise EditError("no value follows")
        end = self.last
        for at in self.outer(begin):
            if self.tokens[at].text == "else" and self.tokens[at - 1].text != "}":
                end = at
        return begin, end

    def swapped(self, old):
        wanted = [token.text for token in tokens_of(old)]
        texts = [token.text for token in self.tokens]
        found = [at for at in range(self.first, self.last - len(wanted) + 1) if texts[at : at + len(wanted)] == wanted]
        if len(found) != 1:
            raise EditError(f"{old} is there {len(found)} times")
        return found[0], found[0] + len(wanted)

    def edited(self, verb, text):
        """The whole source with the edit made."""
        end = None
        if verb == "condition":
            begin, last = self.condition()
        elif verb == "value":
            begin, last = self.value()
        elif verb == "swap":
            old, separator, text = (text + " ").partition(" ~> ")
            if not separator:
                raise EditError(f"swap {old}: needs OLD ~> NEW")
            begin, last = self.swapped(old)
        else:
            begin, last = self.first, self.last
            if verb == "delete":
                text = ""
                end = self.tokens[last].end if self.is_terminated else None
        start = self.tokens[begin].start
        end = end or self.tokens[last - 1].end
        new = text.strip().replace("$", self.source[start : self.tokens[last - 1].end])
        if new == self.source[start:end]:
            raise EditError("changes nothing")
        return self.source[:start] + new + self.source[end:]


class Edit:
    """One line of an entry: what is done at which place."""

    def __init__(self, line, name):
        verb, _, rest = line.partition(" ")
        match = re.match(r"@(\S+)\s*", rest)
        self.verb = verb
        self.place = match[1] if match else name
        self.text = rest[match.end() :] if match else rest
        if verb not in VERBS:
            raise EditError(f"{line}: the verbs are {', '.join(VERBS)}")
        if (verb == "delete") == bool(self.text.strip()):
            raise EditError(f"{line}: delete has no text, the others have one")


class Entry:
    """A guard or a mutant: what is edited, and the test or the rule of the simulator that fails then."""

    def __init__(self, name):
        self.name, self.what, self.test, self.env, self.rules, self.edits = name, "", None, None, None, []

    def read(self, line):
        key, _, rest = line.partition(" ")
        if key == "#":
            self.what = self.what or rest
        elif key == "test":
            self.test = tuple(rest.split(" ", 2))
        elif key == "env":
            self.env = tuple(rest.split("=", 1))
        elif key == "rules":
            self.rules = rest
        elif line:
            self.edits.append(Edit(line, self.name))


def guards(tree=ROOT):
    """The guards, each a file: `# what it guards`, `test PACKAGE[/FEATURE] TARGET NAME`, perhaps `env KEY=VALUE`, and edits."""
    entries = []
    for path in sorted(glob.glob(os.path.join(tree, "crates/turnbuckle/tests/guards/*"))):
        entries.append(Entry(os.path.basename(path)))
        with open(path, encoding="utf-8") as file:
            for line in file.read().splitlines():
                entries[-1].read(line)
    return entries


def mutants(tree=ROOT):
    """The mutants, paragraphs of one file: `mutant NAME`, then `rules NAMES` of the simulator or `test PACKAGE TARGET NAME`, and edits."""
    entries = []
    with open(os.path.join(tree, "crates/sim/mutants"), encoding="utf-8") as file:
        for line in file.read().splitlines():
            if line.startswith("mutant "):
                entries.append(Entry(line.split()[1]))
            elif not line.startswith("#") and entries:
                entries[-1].read(line)
    return entries


class Places:
    """Where the comments of a tree are."""

    def __init__(self, tree=ROOT):
        self.tree = tree
        self.files_by_name = {}
        paths = [path for kind in ("rs", "c") for path in glob.glob(os.path.join(tree, f"crates/**/*.{kind}"), recursive=True)]
        for path in sorted(paths):
            with open(path, encoding="utf-8") as file:
                for match in PLACE.finditer(file.read()):
                    for name in names_of(match):
                        self.files_by_name.setdefault(name, []).append(os.path.relpath(path, tree))

    def file_of(self, name):
        files = self.files_by_name.get(name, [])
        if not files:
            raise EditError(f"no comment names the place {name}")
        if len(files) > 1:
            raise EditError(f"{len(files)} comments name the place {name}: {', '.join(files)}")
        return files[0]

    def apply(self, entry):
        """The new text of each file that an entry's edits change, by its name; writes nothing."""
        source_by_file = {}
        for edit in entry.edits:
            name = self.file_of(edit.place)
            if name not in source_by_file:
                with open(os.path.join(self.tree, name), encoding="utf-8") as file:
                    source_by_file[name] = file.read()
            source = source_by_file[name]
            try:
                source_by_file[name] = Node(source, begin_of(source, edit.place)).edited(edit.verb, edit.text)
            except EditError as error:
                raise EditError(f"{name}: {edit.place}: {error}") from None
        return source_by_file

    def complaints(self, entries):
        """What keeps entries from being tried, line by line."""
        for entry in entries:
            if not entry.edits:
                yield f"{entry.name}: edits nothing"
            if (entry.test is None) == (entry.rules is None):
                yield f"{entry.name}: needs a test or rules"
            if entry.test and len(entry.test) != 3:
                yield f"{entry.name}: test PACKAGE TARGET NAME"
            try:
                self.apply(entry)
            except EditError as error:
                yield f"{entry.name}: {error}"

    def unused(self, entries):
        """The places that no entry edits."""
        used = {edit.place for entry in entries for edit in entry.edits}
        return [f"{files[0]}: no guard and no mutant edits {name}" for name, files in self.files_by_name.items() if name not in used]


def names_of(match):
    return re.split(r",\s*", match[1])


def begin_of(source, name):
    """Where the code of a place begins: on the line of the comment if there is code in front of it, otherwise behind it."""
    for match in PLACE.finditer(source):
        if name in names_of(match):
            line = source.rfind("\n", 0, match.start()) + 1
            return line if source[line : match.start()].strip() else match.end()
    raise EditError("an edit before has removed the comment")
