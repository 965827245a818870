#!/usr/bin/env python3
"""Opens pages of lutq report in Chromium and looks at them.

Each page is opened at several widths, in light and dark. It must report nothing on the console, load nothing from
elsewhere, be no wider than the window, and be there in a second. With --shots the pictures of it are kept.

  lutq report OUT --against MODEL --text TEXT --to report.html
  scripts/report_check.py report.html --shots shots
"""

import argparse
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

WIDTHS = (380, 800, 1400)

# The page stands in a frame of each width, since the window of a headless Chromium has 500 px and more. It has no scripts: what is
# around it looks at it.
AROUND = """<!doctype html><meta charset="utf-8"><body style="margin:0">%s<script>
const frames = [...document.querySelectorAll("iframe")], times = new Map();
for (const f of frames) f.addEventListener("load", () => times.set(f, f.contentWindow.performance.now()));
function look(f) {
  const w = f.contentWindow, d = f.contentDocument, root = d.documentElement, box = e => e.getBoundingClientRect();
  const wide = [...d.querySelectorAll("body *")].filter(e => !e.closest(".scroll") && box(e).right > w.innerWidth + 1);
  const outside = [...d.querySelectorAll("svg")].flatMap(s => [...s.querySelectorAll("text")].filter(e =>
    box(e).left < box(s).left - 1 || box(e).right > box(s).right + 1 || box(e).top < box(s).top - 1 || box(e).bottom > box(s).bottom + 1));
  return {
    inner: w.innerWidth, scroll: root.scrollWidth, client: root.clientWidth, ms: Math.round(times.get(f)),
    wide: wide.slice(0, 3).map(e => e.outerHTML.slice(0, 80)), outside: outside.slice(0, 3).map(e => e.textContent),
    loaded: w.performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("data:")),
    pictures: d.querySelectorAll("svg").length, paper: w.getComputedStyle(d.body).backgroundColor,
  };
}
addEventListener("load", () => document.documentElement.setAttribute("data-probe", JSON.stringify(frames.map(look))));
</script>"""


def around(text, widths, height):
    frame = '<iframe style="border:0;display:block" width="{}" height="{}" srcdoc="{}"></iframe>'
    return AROUND % "".join(frame.format(w, height, html.escape(text)) for w in widths)


def chromium(program, page, dark, width, height, *more):
    return subprocess.run(
        [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", f"--window-size={width},{height}",
         "--blink-settings=preferredColorScheme=" + ("0" if dark else "1"), *more, page.as_uri()],
        capture_output=True, text=True, timeout=120)


def check(program, page, shots, most):
    problems, times = [], []
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        framed = pathlib.Path(folder) / "page.html"
        for dark in (False, True):
            theme = "dark" if dark else "light"
            framed.write_text(around(text, WIDTHS, 1000), encoding="utf-8")
            run = chromium(program, framed, dark, max(WIDTHS), 1000, "--dump-dom")
            problems += [f"{page}: {theme}: on the console: {line}" for line in run.stderr.splitlines() if ":CONSOLE" in line]
            found = re.search(r'data-probe="([^"]*)"', run.stdout)
            if not found:
                problems.append(f"{page}: {theme}: it does not open: {run.stderr}")
                continue
            for width, probe in zip(WIDTHS, json.loads(html.unescape(found[1]))):
                where = f"{page}: {width} px, {theme}"
                if probe["inner"] != width:
                    problems.append(f"{where}: the frame has {probe['inner']} px")
                if probe["scroll"] > probe["client"]:
                    problems.append(f"{where}: {probe['scroll']} px wide, such as {probe['wide']}")
                if probe["outside"]:
                    problems.append(f"{where}: text lies outside of its picture: {probe['outside']}")
                if probe["loaded"]:
                    problems.append(f"{where}: it loads {probe['loaded']}")
                if (probe["paper"] == "rgb(255, 255, 255)") == dark:
                    problems.append(f"{where}: its paper is {probe['paper']}")
                times.append(probe["ms"])
                print(f"{where}: {probe['pictures']} pictures, there in {probe['ms']} ms")
                if shots:
                    shots.mkdir(parents=True, exist_ok=True)
                    framed.write_text(around(text, [width], 9000), encoding="utf-8")
                    shot = shots.resolve() / f"{page.stem}-{width}-{theme}.png"
                    chromium(program, framed, dark, max(width, 500), 9000, f"--screenshot={shot}")
    if times and min(times) > most:  # of a machine that may have other things to do
        problems.append(f"{page}: {min(times)} ms until it is there")
    return problems


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("page", type=pathlib.Path, nargs="+")
    p.add_argument("--chromium", help="the browser (default chromium, or google-chrome)")
    p.add_argument("--shots", type=pathlib.Path, metavar="FOLDER", help="keep pictures of the pages")
    p.add_argument("--most", type=int, default=1000, metavar="MS", help="the longest that a page may take (default 1000)")
    a = p.parse_args()
    program = a.chromium or shutil.which("chromium") or shutil.which("google-chrome")
    if not program:
        sys.exit("report_check: no Chromium")
    problems = [line for page in a.page for line in check(program, page, a.shots, a.most)]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
