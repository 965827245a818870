#!/usr/bin/env python3
"""Generates Jinja templates and records what transformers' own environment makes of them, for calib/chat/jinja's tests.

    scripts/jinja_oracle.py calib/chat/jinja/testdata/oracle.json.gz [--cases 6000] [--seed 1]
    scripts/jinja_oracle.py OUT --templates DIR…    instead the chat templates below some folders, in many conversations

The second file is for `go test ./calib/chat/jinja -run TestOracle` with LUTQ_JINJA_VECTORS=OUT. Templates are files *.jinja,
and chat_template in files *.json.

Half of the templates come from a generator of typed expressions and statements, with odd white space around tags; the
rest are constructs that chat templates use, in all their spellings. A case is the template, the number of the context that
it is rendered in, and the text, or none where Jinja fails. What Python prints with an address in it is left out. Needs
transformers and jinja2, on Python 3.11, whose rules some methods follow.
"""

import argparse
import datetime
import gzip
import json
import random
import sys
import warnings
from pathlib import Path

import jinja2
import transformers
from transformers.utils import chat_template_utils

NOW = datetime.datetime(2024, 7, 9, 15, 4, 5)


class Then(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(*NOW.timetuple()[:6])


def message(role, content, **more):
    return {"role": role, "content": content, **more}


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Says how the weather is, \"now\".",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where, e.g. Zürich"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}

CONTEXTS = [
    {
        "messages": [message("user", "Name three rivers.")],
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "n": 3, "m": -7, "f": 2.5, "s": "Hello, World", "t": " a b\n\nc\t", "u": "Grüezi, 世界 ß👋", "e": "", "b": True, "z": 0,
        "l": [3, 1, 2], "ls": ["b", "A", "c"], "ll": [[1, 2], [3]], "d": {"b": 1, "a": "x", "items": [1]}, "el": [], "ed": {},
    },
    {
        "messages": [
            message("system", " You are terse. "),
            message("user", "Hi <b>\"there\"</b> & 'you'\n"),
            message("assistant", "<think>\nhm\n</think>\n\nHello!", tool_calls=[{"function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}]),
            message("tool", "{\"rain\": true}"),
            message("user", [{"type": "text", "text": "Again?"}, {"type": "image"}]),
        ],
        "tools": [TOOL],
        "documents": [],
        "add_generation_prompt": False,
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "n": 10, "m": 1, "f": -0.125, "s": "abcabc", "t": "\tone  two\r\nthree ", "u": "ÉCOLE straße", "e": "", "b": False, "z": 0.0,
        "l": [1, 2, 3, 2, 10], "ls": ["x", "y", "x"], "ll": [], "d": {"k": None, "v": [1, {"w": 2.0}], "é": "ü"}, "el": [], "ed": {},
    },
]  # fmt: skip


class Generator:
    """Draws templates."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *options):
        return self.r.choice(options)

    def chance(self, p):
        return self.r.random() < p

    # Expressions, by what they mostly are. depth is how many levels may follow.

    def any(self, depth):
        return getattr(self, self.pick("str", "str", "int", "float", "bool", "list", "dict", "none", "undefined", "tuple"))(depth)

    def none(self, depth):
        return self.pick("none", "None", "tools", "d.get('nope')", "documents")

    def undefined(self, depth):
        return self.pick("nope", "d.nope", "messages[0].nope", "messages[99]", "d['nope']", "('x' if false)", "l[9]", "el|first")

    def literal(self):
        return self.pick(
            "''", "'a'", "'abc'", "' x '", "\"it's\"", "'say \"x\"'", "'a\\tb\\n'", "'\\\\'", "'é'", "'世界'", "'\\u00e9\\x41'", "'<b>&'", "'a,b,,c'", "'12'", "'3.7'",
            "'-5'", "'hello world'", "'Hello World foo'", "'a\\nb\\n\\nc'", "'</think>'", "'%s'", "'x' 'y'", "'{}'", "'0x1f'", "' 7 '", "'aXbXc'", "'ǆ'", "'ﬁne'", "'ΑΣ'",
        )  # fmt: skip

    def str(self, depth):
        if depth <= 0 or self.chance(0.15):
            return self.pick(self.literal(), self.literal(), "s", "t", "u", "e", "messages[0].content", "messages[0]['role']", "bos_token", "messages[-1].role")
        x = self.str(depth - 1)
        kind = self.r.randrange(12)
        if kind == 0:
            return f"{x} ~ {self.any(depth - 1)}"
        if kind == 1:
            return f"{x} + {self.str(depth - 1)}"
        if kind == 2:
            return f"({x} if {self.bool(depth - 1)} else {self.str(depth - 1)})"
        if kind == 3:
            return f"{self.atom(x)}[{self.slice(depth - 1)}]"
        if kind == 4:
            return f"{x} * {self.small()}" if self.chance(0.7) else f"{self.small()} * {x}"
        if kind in (5, 6, 7):
            return f"{self.atom(x)}.{self.method(depth - 1)}"
        if kind == 8:
            return self.formatted(depth - 1)
        if kind == 9:
            return self.any(depth - 1) + self.pick("|string", "|tojson", "|trim", "|e", "|upper", "|tojson(indent=2)", "|tojson(separators=(',',':'))", "|tojson(ensure_ascii=true, sort_keys=true)")
        return f"{x}|{self.filter(depth - 1)}"

    def atom(self, x):
        """Brackets what is more than a name or a literal, mostly."""
        return x if x.isidentifier() or self.chance(0.1) else f"({x})"

    def small(self):
        return self.pick("0", "1", "2", "3", "n", "-1", "true", "'2'|int", "l|length")

    def method(self, depth):
        a, b = self.literal(), self.literal()
        return self.pick(
            "upper()", "lower()", "title()", "capitalize()", "swapcase()", "casefold()", "strip()", "lstrip()", "rstrip()", f"strip({a})", f"lstrip({a})", f"rstrip({a})",
            "strip(none)", f"replace({a}, {b})", f"replace({a}, {b}, {self.small()})", "replace('', '-')", "split()|list", f"split({a})", "split(',')", f"split(' ', {self.small()})",
            f"split(none, {self.small()})", "split(maxsplit=1)", "split(sep='a')", "split('a', maxsplit=1)[0]", "rsplit()", f"rsplit(' ', {self.small()})", f"rsplit(none, {self.small()})", "splitlines()", "splitlines(true)",
            "splitlines(keepends=true)", f"startswith({a})", f"startswith(({a}, {b}))", f"endswith({a})", f"find({a})", f"rfind({a})", f"index({a})", f"count({a})", "find('l', 2)", "find('o', -4, 9)", f"partition({a})",
            f"rpartition({a})", f"removeprefix({a})", f"removesuffix({a})", "isalpha()", "isdigit()", "isnumeric()", "isalnum()", "isspace()", "islower()", "isupper()", "istitle()", "isidentifier()",
            "isprintable()", "isascii()", "isdecimal()", f"zfill({self.small()})", "zfill(9)", "center(9)", f"center(8, {a})", "ljust(9)", "ljust(8, '*')", "rjust(9)", "rjust(8, '.')", "expandtabs()", "expandtabs(4)",
            f"join({self.list(depth)})", "join(ls)", "join('xyz')", f"format({self.any(depth)})", "nope", "nope()", "encode", "__class__", "_x", "startswith('H', 0, 3)", "endswith('d', -1)", "strip(1)", "count('a', 1)",
        )  # fmt: skip

    def filter(self, depth):
        a = self.literal()
        return self.pick(
            "upper", "lower", "title", "capitalize", "trim", f"trim({a})", f"replace({a}, {self.literal()})", f"replace({a}, 'z', 1)", f"replace('l', 'L', count={self.small()})", "length", "count", "list", "list|join('-')", "reverse", "first",
            "last", "wordcount", "indent", "indent(2)", "indent(2, true)", "indent(width=3, first=true, blank=true)", "indent('> ')", "center(12)", "center", "truncate(5)", "truncate(4, true)", "truncate(6, false, '…', 0)",
            "truncate(length=3, end='')", "wordwrap(5)", "wordwrap(7, false)", "escape", "e|upper", "e ~ '<'", "safe", "forceescape", "urlencode", "striptags", "int", "int(9)", "int(default=4)", "int(0, 16)", "int(base=8)", "float", "float(1.5)", "string", "tojson", "default('d')",
            f"default({a}, true)", f"d({a})", "default(boolean=true, default_value=1)", f"format({self.any(depth)})", "select|list", "batch(2)|list", "batch(2, 'x')|list", "slice(2)|list", "slice(3, 'f')|map('join')|list", "unique|join", "sort|join", "sort(reverse=true)|join('|')", "sort(case_sensitive=true)|join",
            "min", "max", "map('upper')|join", "join(',')", "pprint", "filesizeformat", "xmlattr", "nofilter", "attr('upper')", "attr('nope')", "groupby(0)|list", "sum", "abs", "round", "items|list", "dictsort", "upper(1)", "trim(chars='x')",
        )  # fmt: skip

    def formatted(self, depth):
        return self.pick(
            f"'%s-%s' % ({self.any(depth)}, {self.any(depth)})", f"'%s' % {self.str(0)}", f"'%d' % {self.int(depth)}", f"'%05.1f|%-6s|' % ({self.float(depth)}, {self.str(depth)})", f"'%x %X %o' % ({self.int(0)}, {self.int(0)}, {self.int(0)})",
            f"'%+d % d' % ({self.int(0)}, {self.int(0)})", f"'%(role)s' % messages[0]", f"'%r %a' % ({self.str(0)}, {self.str(0)})", f"'%e %g' % ({self.float(0)}, {self.float(0)})", "'%s' % l", "'%s %s' % l", "'100%%' % ()", "'%5s|%.2s' % ('é', 'abc')", "'%3d|%-3d|%03d' % (n, n, m)",
            f"'{{}} {{}}'.format({self.any(depth)}, {self.any(depth)})", f"'{{0}}{{1}}{{0}}'.format({self.str(0)}, {self.int(0)})", f"'{{a}}'.format(a={self.any(depth)})", f"'{{:>8}}|{{:<6}}|{{:^7}}'.format({self.str(0)}, {self.str(0)}, {self.int(0)})",
            f"'{{:.2f}} {{:,}} {{:05d}} {{:+d}} {{:x}} {{:#b}}'.format({self.float(0)}, {self.int(0)}, {self.int(0)}, {self.int(0)}, {self.int(0)}, {self.int(0)})", f"'{{!r}} {{!s}}'.format({self.any(0)}, {self.any(0)})", "'{0.role} {0[content]}'.format(messages[0])", "'{:{w}}|'.format(s, w=n)",
            "'{{}}'.format(1)", "'{:e} {:g} {:%}'.format(f, f, f)", "'{:*^9}'.format(s[:3])", "'{:.3}'.format(s)", "'{a[0]}'.format(a=l)", "'{} {0}'.format(1)", "'{'.format()", "'{:_}'.format(1234567)", "'{:.1f}'.format(n)", "'{:d}'.format(f)", "'{:s}'.format(n)", "'{:08.3f}|{:<8}|{:=+6}'.format(f, n, n)",
        )  # fmt: skip

    def int(self, depth):
        if depth <= 0 or self.chance(0.2):
            return self.pick("0", "1", "2", "3", "7", "42", "-1", "n", "m", "1_000", "0x1f", "0b101", "0o17", "messages|length", "100000000000000000000", "true", "12345678901")
        x, y = self.int(depth - 1), self.int(depth - 1)
        return self.pick(
            f"{x} + {y}", f"{x} - {y}", f"{x} * {y}", f"{x} // {y}", f"{x} % {y}", f"({x}) ** 2", f"2 ** {self.small()}", f"-{self.atom(x)}", f"+{self.atom(x)}", f"({x} if {self.bool(depth - 1)} else {y})", f"{self.list(depth - 1)}|length", f"{self.str(depth - 1)}|length",
            f"{self.any(depth - 1)}|int", f"{self.atom(x)}|abs", f"{self.list(depth - 1)}|sum", f"{self.list(depth - 1)}|max", f"{self.list(depth - 1)}|min", f"{self.str(0)}.count('a')", f"{self.float(depth - 1)}|int", f"({x}, {y})[0]", f"{x}|round", f"({x}) - 1", f"{self.str(0)}.find('b')",
            f"({x})|round(-1)", f"({x}) / ({y})", f"l.index({x})", f"l.count({x})", f"-({x}) // 3", f"({x}) % -3", f"range({self.small()})|sum",
        )  # fmt: skip

    def float(self, depth):
        if depth <= 0 or self.chance(0.2):
            return self.pick("1.0", "2.5", "0.1", "1e3", "1.5e-7", "123456789.125", "f", "1e16", "1e22", "3.0", "-0.0", "0.30000000000000004", "1_0.5", "2.675", "1e-5")
        x, y = self.float(depth - 1), self.pick(self.float(depth - 1), self.int(depth - 1))
        return self.pick(
            f"{x} + {y}", f"{x} - {y}", f"{x} * {y}", f"{x} / {y}", f"{x} // {y}", f"{x} % {y}", f"{self.int(depth - 1)} / {self.int(depth - 1)}", f"({x})|round", f"({x})|round(1)", f"({x})|round(2, 'floor')", f"({x})|round(method='ceil')", f"({x})|abs", f"-({x})", f"{self.any(depth - 1)}|float",
            f"({x}) ** 2", f"({x})|round(-1)", f"({x}) ** -1", f"4 ** 0.5", f"({x})|int", f"({x})|string", f"({x})|filesizeformat", f"({x}).is_integer()",
        )  # fmt: skip

    def test(self, depth):
        return self.pick(
            "defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "sequence", "iterable", "callable", "odd", "even", "lower", "upper", "escaped", "in ls", "in [1, 2]", "divisibleby 2", "divisibleby(3)", f"eq {self.atom(self.any(0))}",
            f"equalto({self.any(depth)})", f"ne {self.atom(self.any(0))}", "gt 1", "lt(2)", "ge 0", "le 3", "greaterthan 1", "lessthan 2", f"in {self.list(0)}", "sameas none", "sameas(true)", "sameas nope", "filter", "test", "notest", "== 1", "not defined", "not none", "not string", "not in ls",
        )  # fmt: skip

    def bool(self, depth):
        if depth <= 0 or self.chance(0.12):
            return self.pick("true", "false", "True", "False", "b", "add_generation_prompt", "not b", "n > 2", "tools", "loop is defined", "nope")
        kind = self.r.randrange(10)
        if kind == 0:
            return f"{self.bool(depth - 1)} {self.pick('and', 'or')} {self.bool(depth - 1)}"
        if kind == 1:
            return f"not {self.bool(depth - 1)}"
        if kind == 2:
            return f"{self.int(depth - 1)} {self.compare()} {self.pick(self.int(depth - 1), self.float(depth - 1))}"
        if kind == 3:
            return f"{self.str(depth - 1)} {self.compare()} {self.str(depth - 1)}"
        if kind == 4:
            return f"{self.str(depth - 1)} {self.pick('in', 'not in')} {self.pick(self.str(depth - 1), self.list(depth - 1), self.dict(depth - 1), 's', 'messages[0]')}"
        if kind in (5, 6):
            return f"{self.atom(self.any(depth - 1))} is {self.test(depth - 1)}"
        if kind == 7:
            return f"{self.any(depth - 1)} {self.pick('==', '!=')} {self.any(depth - 1)}"
        if kind == 8:
            return f"{self.int(0)} {self.compare()} {self.int(0)} {self.compare()} {self.int(0)}"
        return f"{self.any(depth - 1)} {self.pick('in', 'not in')} {self.any(depth - 1)}"

    def compare(self):
        return self.pick("<", "<=", ">", ">=", "==", "!=")

    def slice(self, depth):
        i = lambda: self.pick("", "", "1", "2", "-1", "-2", "0", "n", "99", "-99", "none")
        return self.pick(f"{i()}:{i()}", f"{i()}:{i()}:{self.pick('', '2', '-1', '-2', '3', 'none')}", "0", "-1", "1", "99", "'x'")

    def list(self, depth):
        if depth <= 0 or self.chance(0.12):
            return self.pick("l", "ls", "ll", "el", "[]", "[1, 2, 3]", "['a', 'B', 'c']", "messages", "range(4)", "range(5, 0, -2)", "[[1, 'a'], [2, 'b']]", "[none, true, 1.5]", "(1, 2)")
        x = self.list(depth - 1)
        return self.pick(
            f"[{self.any(depth - 1)}, {self.any(depth - 1)}]", f"[{self.int(depth - 1)}, {self.int(0)}, {self.int(0)}]", f"[{self.str(depth - 1)}, {self.str(0)},]", f"{x} + {self.list(depth - 1)}", f"{self.atom(x)}[{self.slice(0)}]", f"({x})|list", f"({x})|sort", f"({x})|sort(reverse=true)", f"({x})|reverse|list",
            f"({x})|unique|list", f"({x})|batch({self.small()})|list", f"({x})|slice({self.small()})|list", f"({x})|map('{self.pick('string', 'upper', 'int', 'length', 'tojson', 'nofilter', 'trim', 'abs', 'list', 'title', 'default')}')|list", f"messages|map(attribute='{self.pick('role', 'content', 'nope', 'tool_calls', 'content.0', 'role.0')}')|list",
            f"messages|map(attribute='{self.pick('role', 'nope', 'nope.x')}', default='?')|list", f"({x})|map('default', 'q')|list", f"({x})|select('{self.pick('odd', 'even', 'string', 'number', 'defined', 'mapping', 'none', 'notest', 'true', 'upper')}')|list", f"({x})|select('gt', 1)|list", f"({x})|reject('in', [1, 'a'])|list", f"({x})|select|list", f"({x})|reject|list",
            "messages|selectattr('role', 'equalto', 'user')|list", "messages|rejectattr('role', 'in', ['user', 'system'])|map(attribute='role')|list", "messages|selectattr('tool_calls')|list", "messages|selectattr('tool_calls', 'defined')|list|length", "messages|selectattr('role', 'ne', 'user')|list|last", f"({x}) * {self.small()}",
            f"({self.dict(depth - 1)}).{self.pick('keys', 'values', 'items')}()|list", f"({self.dict(depth - 1)})|items|list", f"({self.dict(depth - 1)})|dictsort", f"({self.dict(depth - 1)})|dictsort(true, 'value', reverse=true)", f"({self.dict(depth - 1)})|list", f"({self.str(depth - 1)})|list", f"({self.str(depth - 1)}).split()", "messages|groupby('role')",
            "messages|groupby('role')|map(attribute='grouper')|list", "messages|groupby('nope', default='x')|map('last')|list", f"({x}).copy()", f"({x})|first", f"({x})|last", f"({x})|sum(start=[])", f"({self.list(0)}|map('string')|list, {x})", f"range({self.small()}, {self.small()})|list", f"({x}).append(1)", "messages|map('length')|list", "messages|sort(attribute='role')|map(attribute='role')|list",
            "messages|unique(attribute='role')|map(attribute='role')|list", "messages|min(attribute='role')", "ls|sort(case_sensitive=true)", "ls|unique(true)|list", "messages|sort(attribute='role,content')|list|length", f"({x})|join(', ')", f"({x})|join(d={self.literal()})", "messages|join('|', attribute='role')", f"({x})|tojson", f"({x})[0]", f"({x})|list|length",
        )  # fmt: skip

    def tuple(self, depth):
        return self.pick(f"({self.any(depth - 1)}, {self.any(depth - 1)})", "()", "(1,)", f"({self.any(0)},)", f"dict(a={self.any(0)}).items()|list|first", "('a', 1, none)") if depth > 0 else "(1, 2)"

    def dict(self, depth):
        if depth <= 0 or self.chance(0.15):
            return self.pick("d", "ed", "{}", "messages[0]", "{'a': 1, 'b': none}", "dict(a=1, b='x')", "{1: 'i', 1.5: 'f', none: 'n', true: 't'}", "tools[0]")
        return self.pick(
            f"{{'k': {self.any(depth - 1)}, 'a': {self.any(depth - 1)}}}", f"{{{self.any(0)}: {self.any(depth - 1)}}}", f"dict({self.dict(depth - 1)}, z={self.any(depth - 1)})", f"dict([('p', {self.any(0)}), ('q', 2)])", f"({self.dict(depth - 1)}).get({self.literal()})", f"({self.dict(depth - 1)}).get('a', {self.any(0)})",
            f"({self.dict(depth - 1)}).a", f"({self.dict(depth - 1)})['a']", f"({self.dict(depth - 1)}).{self.pick('b', 'k', 'items', 'keys', 'pop', 'update', 'nope', 'role', '__class__', 'function', 'function.name')}", f"({self.dict(depth - 1)}).copy()", f"({self.dict(depth - 1)})|length", f"({self.dict(depth - 1)})|tojson", f"({self.dict(depth - 1)})|tojson(indent={self.pick('0', '1', '4', 'none')})",
            f"({self.dict(depth - 1)}).keys()", f"({self.dict(depth - 1)}).values()", f"({self.dict(depth - 1)}).items()", f"({self.dict(depth - 1)})|xmlattr", f"({self.dict(depth - 1)})|urlencode", f"({self.dict(depth - 1)}).update({{'a': 1}})", "messages[0] == messages[0]", "dict.fromkeys(ls, 0)", f"namespace(a={self.any(0)})", f"({self.dict(depth - 1)})|first",
        )  # fmt: skip

    # Statements.

    def open(self, plus=True):
        return self.pick("", "", "", "", "-", "+" if plus else "")

    def blank(self):
        return self.pick(" ", " ", " ", "", "  ", "\n", "\n  ")

    def tag(self, text):
        return f"{{%{self.open()}{self.blank() or ' '}{text}{self.blank() or ' '}{self.open()}%}}"

    def print(self, x):
        return f"{{{{{self.pick('', '', '', '-', '+')}{self.pick(' ', ' ', '  ', chr(10))}{x}{self.pick(' ', ' ', '  ', chr(10))}{self.pick('', '', '', '-')}}}}}"

    def text(self):
        return self.pick("", "", "", "x", " ", "\n", "  \n", "\n  ", "a\nb", " y ", "\n\n", "\t", "{# c #}", "{#- c -#}", "\n  {# c #}\n", "{", "}}", "%}", "é", "{% raw %} {{ x }} {% endraw %}", " {%- raw -%} {% x %} {%- endraw -%} ", "\r\n", "<|im_start|>")

    def block(self, depth):
        return "".join(self.text() + self.statement(depth - 1) for _ in range(self.r.randrange(1, 3))) + self.text()

    def loop_body(self, depth):
        return self.pick(
            self.block(depth), self.print("loop.index"), self.print("loop." + self.pick("index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "cycle('a', 'b')", "changed(x)", "nope", "previtem", "nextitem", "previtem is defined", "nextitem is undefined", "cycle()")), self.print("x"),
            self.print("x") + self.tag("if loop.index == 2") + self.tag(self.pick("break", "continue")) + self.tag("endif") + self.text(), self.tag("if x is " + self.test(0)) + self.print("x") + self.tag("else") + "-" + self.tag("endif"), self.tag("set n = n + 1") + self.print("n"), self.tag("set ns.v = (ns.v or 0) + 1") + self.print("ns.v"),
            self.tag("continue"), self.print("loop"), self.print("loop.previtem ~ x ~ loop.nextitem"), self.print("[x, loop.last]"),
        )  # fmt: skip

    def statement(self, depth):
        if depth <= 0 or self.chance(0.3):
            return self.print(self.any(2))
        kind = self.r.randrange(19)
        x = self.any(2)
        if kind == 0:
            return self.tag(f"if {self.bool(2)}") + self.block(depth) + self.tag("endif")
        if kind == 1:
            return self.tag(f"if {self.bool(2)}") + self.block(depth) + self.tag(f"elif {self.any(1)}") + self.block(depth) + self.tag("else") + self.block(depth) + self.tag("endif")
        if kind in (2, 3):
            return self.tag("set ns = namespace(v=0)") + self.tag(f"for x in {self.list(2)}{self.pick('', '', '', ' if x', ' if loop is undefined', ' if x is ' + self.test(0))}") + self.loop_body(depth) + self.pick("", self.tag("else") + "none") + self.tag("endfor") + self.print(self.pick("x", "n", "ns.v", "loop", "ns"))
        if kind == 4:
            return self.tag(f"for k, v in {self.pick(self.dict(1) + '.items()', 'd|items', 'd|dictsort', self.list(1), 'll', 'messages|groupby(' + repr('role') + ')')}") + self.print("k") + self.print("v") + self.block(depth) + self.tag("endfor")
        if kind == 5:
            return self.tag(f"set y = {x}") + self.text() + self.print(self.pick("y", "y|string", "y ~ ''", "y is defined"))
        if kind == 6:
            return self.tag(f"set y, w = {self.any(1)}, {self.any(1)}") + self.print("w") + self.print("y")
        if kind == 7:
            return self.tag(f"set y{self.pick('', '|upper', '|trim', '|replace(' + repr('a') + ', ' + repr('b') + ')', '|length')}") + self.block(depth) + self.tag("endset") + self.print(self.pick("y", "y|length", "y|trim", "[y]"))
        if kind == 8:
            return self.tag(f"macro q({self.pick('a', 'a, b=2', 'a, b=a', 'a=none', '', 'a, b=n, c=' + self.literal())})") + self.text() + self.print("a") + self.print(self.pick("b", "varargs", "kwargs", "caller", "x", "c", "varargs|length")) + self.block(depth) + self.tag("endmacro") + self.print(f"q({self.pick('1', '1, 2', 'a=3', '', '1, b=4', '1, 2, 3', 'b=1, a=2', '*l', '**d', 'z=1', self.any(1))})" + self.pick("", "|trim", "|length", " ~ '!'"))
        if kind == 9:
            return self.tag("macro q(a)") + "<" + self.print(self.pick("caller()", "caller(a)", "caller(a, 2)", "a")) + ">" + self.tag("endmacro") + self.tag(f"call{self.pick('', '(p)', '(p, r=1)')} q({x})") + self.block(depth) + self.print("p") + self.tag("endcall")
        if kind == 10:
            return self.tag(f"filter {self.pick('upper', 'trim', 'indent(2)', 'replace(' + repr('a') + ', ' + repr('b') + ')|upper', 'length', 'e', 'title')}") + self.block(depth) + self.tag("endfilter")
        if kind == 11:
            return self.tag(f"with {self.pick('y = ' + x, 'y = 1, w = n', '')}") + self.block(depth) + self.print(self.pick("y", "w", "n")) + self.tag("endwith") + self.print("y")
        if kind == 12:
            return self.tag(f"set ns = namespace({self.pick('a=1', '', 'd', 'a=[]')})") + self.tag(f"for x in {self.list(1)}") + self.tag(f"set ns.a = {self.pick('x', 'ns.a ~ x', '[x]', 'loop.index')}") + self.tag("endfor") + self.print(self.pick("ns.a", "ns", "ns.a is defined", "ns['a']"))
        if kind == 13:
            return self.tag("for x in ll recursive") + self.print("x if x is not iterable else loop(x)") + self.print("loop.depth") + self.text() + self.tag("endfor")
        if kind == 14:
            return self.tag("generation") + self.block(depth) + self.tag("endgeneration")
        if kind == 15:
            return self.tag(f"for m in messages{self.pick('', '[1:]', '[::-1]', '|reverse', ' if m.role != ' + repr('system'))}") + self.tag(f"if m.role == {self.pick(repr('user'), repr('system'))}") + self.print("m.content") + self.tag(self.pick("elif m['role'] == 'assistant'", "else", "elif m.tool_calls is defined")) + self.print("m.content|trim" if self.chance(0.5) else "loop.index0") + self.tag("endif") + self.tag("endfor")
        if kind == 16:
            return self.tag(f"set g = {self.list(1)}|{self.pick('map(' + repr('string') + ')', 'select', 'reverse', 'batch(2)', 'unique')}") + self.print("g|list") + self.print(self.pick("g|list", "g is defined", "g|first", "'1' in g", "g|join", "g[0]", "g|length"))
        if kind == 17:
            return self.pick(
                self.print("raise_exception('no ' ~ s)") if self.chance(0.2) else self.print("strftime_now('" + self.pick("%d %b %Y", "%Y-%m-%d", "%-d %-m %H:%M", "%A %B %e", "%I:%M %p", "%j %U %W %V", "%y%m%d", "%x %X %c", "%R %u %w %z%Z", "%s"[:0] + "%D %T %F", "%k %l %P %C %G %g", "%^a %#b %_d %05d %10Y|%n|%t|%%|%q", "%h %Ed %Om") + "')"),
                self.tag("block q") + self.block(depth) + self.tag("endblock"), self.tag("set j = joiner('|')") + self.print("j()") + self.print("j()") + self.print("j()"), self.tag("set c = cycler(1, 2)") + self.print("c.next()") + self.print("c.current") + self.print("c.next() ~ c.next()"), self.tag("print 1, 'x'"), self.tag("include 'x'"), self.tag("break"), self.tag("do x"),
                self.tag("if false") + self.tag("include 'x'") + self.tag("endif"), self.tag("set loop = 1") + self.print("loop"), self.tag("set messages = messages[1:]") + self.print("messages|length"), self.tag("for i in range(3)") + self.tag("set q = i") + self.print("q") + self.tag("endfor") + self.print("q"),
                self.tag("if b") + self.tag("set q = 1") + self.tag("else") + self.tag("set q = 2") + self.tag("endif") + self.print("q"), self.print("n") + self.tag("set n = 5") + self.print("n"), self.tag("for i in [1]") + self.print("s") + self.tag("endfor") + self.tag("set s = 'later'") + self.print("s"),
            )  # fmt: skip
        return self.print(x) + self.print(self.any(3))

    def template(self):
        kind = self.r.randrange(4)
        if kind == 0:
            return self.print(self.any(3))
        if kind == 1:
            return self.text() + self.print(self.pick(self.str, self.bool, self.list, self.dict, self.int, self.float)(4))
        return self.block(2)


def answer(template, context):
    """Returns what transformers makes of a template, or None where it fails, and whether that can be compared."""
    try:
        text = chat_template_utils._cached_compile_jinja_template(template).render(**json.loads(json.dumps(context)))
        text.encode()
    except Exception:
        return None, True
    return text, " at 0x" not in text


def generate(cases, seed, contexts=CONTEXTS):
    """Returns cases, no two of the same template."""
    generator, seen, out = Generator(seed), set(), []
    while len(out) < cases:
        template = generator.template()
        context = generator.r.randrange(len(contexts))
        if template in seen or len(template) > 400:
            continue
        seen.add(template)
        text, comparable = answer(template, contexts[context])
        if text is None and generator.chance(0.6):
            continue  # there are enough that fail
        if not comparable or text is not None and len(text) > 2000:
            continue
        out.append([template, context] if text is None else [template, context, text])
    return out


def templates(folders):
    """Returns the chat templates in files below folders, once each."""
    found = {}

    def add(path, value):
        if isinstance(value, str):
            found.setdefault(value, path)
        elif isinstance(value, list):
            for item in value:
                add(path, item.get("template") if isinstance(item, dict) else None)
        elif isinstance(value, dict):
            for item in value.values():
                add(path, item)

    for folder in folders:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix == ".jinja":
                add(path, path.read_text(encoding="utf-8"))
            elif path.suffix == ".json" and path.stat().st_size < 64 << 20:
                text = path.read_text(encoding="utf-8", errors="replace")
                if "chat_template" in text:
                    try:
                        value = json.loads(text)
                    except ValueError:
                        continue
                    if isinstance(value, dict):
                        add(path, value.get("chat_template"))
    return found


def conversations():
    """Returns contexts in which real templates are rendered."""
    call = {"type": "function", "id": "call12345", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}
    texts = dict(call, function={"name": "get_weather", "arguments": "{\"city\": \"Zürich\"}"})
    chats = [
        [message("user", "Name three rivers.")],
        [message("system", " You are terse. "), message("user", "Hi <b>\"there\"</b> & 'you'\n")],
        [message("user", "\n Grüezi, 世界 👋 "), message("assistant", "<think>\nhm\n</think>\n\nHello!"), message("user", "Again?")],
        [message("system", "Be."), message("user", "a"), message("assistant", "b", reasoning_content="why"), message("user", "c"), message("assistant", "</think>d")],
        [message("user", "first"), message("user", "second")],
        [message("user", "How is it?"), message("assistant", "", tool_calls=[call]), message("tool", "{\"rain\": true}", name="get_weather", tool_call_id="call12345")],
        [message("user", "How is it?"), message("assistant", None, tool_calls=[texts, texts]), message("tool", "wet", tool_call_id="call12345"), message("tool", "dry", tool_call_id="call12345"), message("assistant", "Both."), message("user", "No.")],
        [message("user", [{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": "this?"}])],
        [message("system", [{"type": "text", "text": "Look."}]), message("user", [{"type": "text", "text": "x"}])],
        [message("assistant", "I begin."), message("user", "Well.")],
        [message("developer", "dev"), message("user", "hi"), message("banana", "x")],
        [message("system", "only")],
        [],
    ]  # fmt: skip
    out = []
    for chat in chats:
        for prompt, tools, more in ((True, None, {}), (False, None, {"enable_thinking": False}), (True, [TOOL, TOOL], {"enable_thinking": True, "thinking": True, "date_string": "1 Jan 2026", "reasoning_effort": "high"})):
            out.append({"messages": chat, "tools": tools, "documents": None, "add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **more})
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--cases", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--templates", nargs="+", metavar="DIR")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    chat_template_utils.datetime = Then
    contexts = conversations() if args.templates else CONTEXTS
    if args.templates:
        cases = []
        found = templates(args.templates)
        for template in found:
            for i, context in enumerate(contexts):
                text, comparable = answer(template, context)
                if comparable:
                    cases.append([template, i] if text is None else [template, i, text])
        print(f"{len(found)} templates, {len(cases)} cases, of which {sum(len(c) == 2 for c in cases)} fail")
    else:
        cases = generate(args.cases, args.seed)
    out = {
        "transformers": transformers.__version__,
        "jinja2": jinja2.__version__,
        "python": sys.version.split()[0],
        "now": NOW.isoformat() + "Z",
        "contexts": contexts,
        "cases": cases,
    }
    text = json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()
    with open(args.out, "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", mtime=0, filename="") as z:
        z.write(text)


if __name__ == "__main__":
    main()
