"""English text that every Python carries: the documentation inside its own standard library.

Three sources, read from the sources of the standard library without importing anything: the language reference that
`help()` prints (`pydoc_data/topics.py`), the docstrings, and the blocks of comments. Only paragraphs of prose are
kept, each as one line, so that a small model spends its capacity on English and not on code or on line breaks.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

TOPICS = Path("pydoc_data") / "topics.py"
# Installed packages are not the standard library, not every distribution ships the tests, and the prose of encodings
# is one sentence repeated for each code page.
EXCLUDED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"})
MINIMUM_COMMENT_LINES = 2
MINIMUM_WORDS = 6
MINIMUM_PROSE_SHARE = 0.9  # letters, spaces and plain punctuation among all characters

_PROSE_START = re.compile(r"[A-Z\"'`(]")
_PROSE_END = re.compile(r"[.:;!?)\"'`]$")
_PROSE_CHARACTERS = re.compile(r"[A-Za-z ,.]")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # the fields of a statement that hold statements
# Strings, so that what looks like a comment in them is none, and comments. `tokenize` would make each token in Python.
_STRING_OR_COMMENT = re.compile(
    r"""
      \"{3} [^"\\]* (?: (?: \\(?s:.) | "(?!"") ) [^"\\]* )* "{3}
    | '{3} [^'\\]* (?: (?: \\(?s:.) | '(?!'') ) [^'\\]* )* '{3}
    | " (?: [^"\\\n] | \\(?s:.) )* "
    | ' (?: [^'\\\n] | \\(?s:.) )* '
    | (?P<comment> \#.* )
    """,
    re.VERBOSE,
)


def source_files(library: Path | None = None) -> list[Path]:
    """Returns the sources of the standard library in sorted order; `library` defaults to this Python's."""
    root = library if library is not None else Path(sysconfig.get_path("stdlib"))
    return [path for path in sorted(root.rglob("*.py")) if EXCLUDED_FOLDERS.isdisjoint(path.relative_to(root).parts)]


def fingerprint(library: Path | None = None) -> str:
    """Returns a hash of the sources: far quicker than collecting the text, and different whenever the text is."""
    digest = hashlib.sha256()
    for path in source_files(library):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def collect_documents(library: Path | None = None) -> list[str]:
    """Collects the prose of the standard library.

    Args:
        library: the folder to read; by default the standard library of the Python that runs.

    Returns:
        One string per topic, docstring or block of comments, in the order of the sources; paragraphs are separated
        by a blank line, and a paragraph that occurred before is left out.

    Raises:
        RuntimeError: there are no sources, as in a Python that was packed as byte code.
    """
    seen: set[str] = set()
    documents = []
    for path in source_files(library):
        for text in _texts(path):
            paragraphs = [paragraph for paragraph in prose_paragraphs(text) if paragraph not in seen]
            seen.update(paragraphs)
            if paragraphs:
                documents.append("\n\n".join(dict.fromkeys(paragraphs)))
    if not documents:
        raise RuntimeError(
            f"collect_documents: library must hold Python sources with docstrings, got {library or 'none'}. "
            "Use a Python whose standard library is installed as .py files."
        )
    return documents


def prose_paragraphs(text: str) -> Iterator[str]:
    """Yields the paragraphs of `text` that are English sentences, unwrapped into one line each."""
    for block in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in block.strip().splitlines()]
        paragraph = re.sub(r"\s+", " ", " ".join(lines))
        if paragraph.endswith("::"):  # reStructuredText's "an example follows"; the example itself is code
            paragraph = paragraph[:-1]
        if (
            len(paragraph.split()) >= MINIMUM_WORDS
            and paragraph.isascii()
            and _PROSE_START.match(paragraph)
            and _PROSE_END.search(paragraph)
            and ">>>" not in paragraph
            and len(_PROSE_CHARACTERS.findall(paragraph)) >= MINIMUM_PROSE_SHARE * len(paragraph)
        ):
            yield paragraph


def _texts(path: Path) -> Iterable[str]:
    """Returns the pieces of English in one source file; a file that this Python cannot read has none."""
    try:
        with tokenize.open(path) as file:
            source = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the escape sequences of the code that is read
            tree = ast.parse(source)
    except (SyntaxError, UnicodeDecodeError):  # templates and deliberately broken files
        return []
    if path.parts[-2:] == TOPICS.parts:
        return _topics(tree)
    return [*_docstrings(tree), *_comment_blocks(source)]


def _topics(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            yield from ast.literal_eval(statement.value).values()


def _docstrings(tree: ast.Module) -> Iterator[str]:
    statements: list[ast.AST] = [tree]
    for statement in statements:  # level by level, as `ast.walk` goes, but without expressions
        if isinstance(statement, _DOCUMENTED) and (docstring := ast.get_docstring(statement)):
            yield docstring
        for block in _BLOCKS:
            statements += getattr(statement, block, ())


def _comment_blocks(source: str) -> Iterator[str]:
    """Yields each run of whole-line comments."""
    lines: list[str] = []
    end_of_previous = 0
    for match in _STRING_OR_COMMENT.finditer(source):
        start = match.start("comment")
        if start < 0 or source[source.rfind("\n", 0, start) + 1 : start].strip():
            continue
        between = source[end_of_previous:start]
        if between.count("\n") != 1 or between.strip():
            yield from _comment_text(lines)
            lines = []
        lines.append(match["comment"].lstrip("#!:"))
        end_of_previous = match.end()
    yield from _comment_text(lines)


def _comment_text(lines: list[str]) -> Iterator[str]:
    if len(lines) >= MINIMUM_COMMENT_LINES:
        yield inspect.cleandoc("\n".join(lines))
