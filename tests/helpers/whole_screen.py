"""Whether all of a workbench is seen: nothing cut, blank, below the screen or in a colour like its background."""

from __future__ import annotations

import itertools
import json
import time

FAULTS_OF_TAB = """(tab) => {
  const bench = document.querySelector('.bl-workbench');
  const seen = (e) => e.offsetParent !== null && e.getBoundingClientRect().width > 0;
  const all = (selector) => [...bench.querySelectorAll(selector)].filter(seen);
  const brush = document.createElement('canvas').getContext('2d');
  const wide = (text, e) => { brush.font = getComputedStyle(e).font; return brush.measureText(text).width; };
  const chosen = (e) => e.options[e.selectedIndex]?.textContent ?? '';
  const panes = bench.querySelector('.bl-panes');
  const tall = (e) => e.scrollHeight > e.clientHeight + 2 || e.scrollWidth > e.clientWidth + 2;
  const unlike = (e) => Math.abs((e.querySelector('svg')?.clientWidth ?? 0) - e.clientWidth) > 2;
  const labels = '.widget-button, .bl-button, .widget-label, .bl-key, .bl-live, th';
  const beyond = (e) => {
    const [a, b] = [e.getBoundingClientRect(), e.closest('svg').getBoundingClientRect()];
    return a.left < b.left - 2 || a.right > b.right + 2 || a.bottom > b.bottom + 2;
  };
  const centre = (e) => { const r = e.getBoundingClientRect(); return [(r.left + r.right) / 2, (r.top + r.bottom) / 2]; };
  const covers = (e) => {
    const text = e.getBoundingClientRect();
    return [...e.closest('svg').querySelectorAll('circle:not([fill="transparent"])')].map(centre)
      .some(([x, y]) => x > text.left && x < text.right && y > text.top && y < text.bottom);
  };
  return {
    below: Math.round(bench.getBoundingClientRect().bottom - innerHeight),
    clipped: all('.bl-advice-cause').filter((e) => e.scrollHeight > e.clientHeight + 1).map((e) => e.textContent),
    cut: all(labels).filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent),
    chosen: all('select').filter((e) => wide(chosen(e), e) > e.clientWidth - 18).map(chosen),
    blank: all('.bl-chart').filter((e) => e.clientHeight > 0 && unlike(e)).length,
    outside: all('.bl-chart text').filter(beyond).map((e) => e.textContent),
    covered: all('.bl-chart text').filter(covers).map((e) => e.textContent),
    scrolls: tab === 'Compare' && [panes, ...all('.bl-pane-compare .bl-scroll')].some(tall),
    // A hair too wide is enough for a bar to scroll sideways.
    sideways: all('.widget-box').filter((e) => e.scrollWidth > e.clientWidth && getComputedStyle(e).overflowX === 'auto')
      .map((e) => e.innerText.slice(0, 40)),
    nothing: bench.innerText.match(/\\b0\\.00 us|-0(\\.0+)? ?%|\\b0\\.00\\d* [kMG]B/g) ?? [],
    // A tooltip is text: a tag in it would be read as such.
    tags: [...bench.querySelectorAll('[title]')].map((e) => e.title).filter((title) => /<\\w+[ >]/.test(title)),
  };
}"""
CONTRAST = """() => {
  const numbers = (text) => (text.match(/[\\d.]+/g) ?? []).map((v, k) =>
    Number(v) * (text.startsWith('color(') && k < 3 ? 255 : 1));
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (e) => {
    for (let at = e; at; at = at.parentElement) {
      const found = numbers(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0.5) return found;
    }
    return [255, 255, 255];
  };
  const faint = [];
  for (const e of document.querySelectorAll('.bl-workbench *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length || e.matches('option, style, title, :disabled')) continue;
    const style = getComputedStyle(e);
    const text = numbers(e instanceof SVGElement ? style.fill : style.color).slice(0, 3);
    const [a, b] = [light(text), light(behind(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 3) faint.push(`${contrast.toFixed(1)} ${e.tagName} ${e.textContent.slice(0, 40)}`);
  }
  return faint;
}"""
EMPTIED = """() => {  // canvases without any mark when the page is shown: this observer is asked after those of the views
  const empty = (c) => !new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer).some((p) => p);
  window.emptied = [];
  const sizes = new ResizeObserver((all) => all.map((e) => e.target.querySelector('canvas')).filter((c) => c?.width && empty(c))
    .forEach((c) => window.emptied.push(`${c.ariaLabel} ${c.width} x ${c.height}`)));
  document.querySelectorAll('.bl-workbench .bl-stage').forEach((stage) => sizes.observe(stage));
}"""
RECORD_TEXTS = """(canvas) => {  // what a canvas draws from now on: [text, left, right, top and bottom edge, width of the canvas]
  let drawn, frame;
  const context = canvas.getContext('2d');
  context.fillText = (text, x, y) => {
    if (frame !== canvas.dataset.frames) [drawn, frame] = [canvas.drawnTexts = [], canvas.dataset.frames];
    const { width: wide, actualBoundingBoxAscent: above, actualBoundingBoxDescent: below } = context.measureText(text);
    const left = x - ({ center: wide / 2, right: wide, end: wide }[context.textAlign] ?? 0);
    drawn.push([text, left, left + wide, y - above, y + below, canvas.clientWidth]);
    CanvasRenderingContext2D.prototype.fillText.call(context, text, x, y);
  };
}"""
TABS = ("Graph", "Timeline", "Compare", "Run", "Explore", "Explain", "Fit", "Export")


def tab(page, name):
    """Open a part of the workbench, and wait until it is shown: the kernel says what is."""
    page.click(f'.bl-workbench .bl-tab:text-is("{name}")')
    page.wait_for_selector(f".bl-panes.bl-at-{name.lower()}")


def texts_of(page, view):
    """The texts that a view draws while the mouse lies on it; each ends within the canvas, and none lies on another."""
    canvas = page.locator(f'canvas[aria-label="{view}"]')
    canvas.scroll_into_view_if_needed()
    page.mouse.move(0, 0)
    canvas.evaluate(RECORD_TEXTS)
    canvas.hover()
    page.wait_for_function("(canvas) => canvas.drawnTexts?.length", arg=canvas.element_handle())
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    texts = canvas.evaluate("(canvas) => { delete canvas.getContext('2d').fillText; return canvas.drawnTexts; }")
    assert [text for text, left, right, _, _, width in texts if left < 0 or right > width] == []
    pairs = itertools.combinations(texts, 2)
    assert [(a[0], b[0]) for a, b in pairs if a != b and _common(a, b, 1, 2) > 1.5 and _common(a, b, 3, 4) > 1.5] == []
    return {text for text, *_ in texts}


def bytes_beside(value, largest):
    """Bytes as the memory view draws them: in the unit of the largest that stand beside them."""
    unit = next((unit for unit in (1e9, 1e6, 1e3) if largest >= unit), 1.0)
    digits = 0 if unit == 1.0 else 2
    return f"{value / unit:.{digits}f} { {1e9: 'GB', 1e6: 'MB', 1e3: 'kB', 1.0: 'B'}[unit] }"


def _common(first, second, low, high):
    """The length that two boxes have in common between their edges at the positions `low` and `high`."""
    return min(first[high], second[high]) - max(first[low], second[low])


def is_themed(page, theme):
    """Whether the page has JupyterLab's `Light` or `Dark` theme."""
    return page.evaluate("() => document.body.dataset.jpThemeLight") == json.dumps(theme == "Light")


def themed(page, theme):
    """JupyterLab's `Light` or `Dark` theme."""
    if is_themed(page, theme):
        return
    page.evaluate(
        f"() => window.jupyterapp.commands.execute('apputils:change-theme', {{ theme: 'JupyterLab {theme}' }})"
    )
    page.wait_for_selector(f"body[data-jp-theme-light='{json.dumps(theme == 'Light')}']", state="attached")


def faults(page, name):
    """What of the part `name` is not whole, as `{kind: what}`; the workbench is scrolled to the top of the screen."""
    tab(page, name)
    end = time.monotonic() + 60
    while True:  # until what follows the size of the window, the tab and the theme has followed
        page.evaluate("() => document.querySelector('.bl-workbench').scrollIntoView({ block: 'start' })")
        seen_faults = {**page.evaluate(FAULTS_OF_TAB, name), "faint": page.evaluate(CONTRAST)}
        seen_faults["below"] = max(seen_faults["below"], 0)
        seen_faults = {kind: fault for kind, fault in seen_faults.items() if fault}
        if not seen_faults or time.monotonic() > end:
            return seen_faults
        page.wait_for_timeout(60)
