// A horizontal axis of time that the timeline and the memory view share: the window that is shown, and moving it by drag,
// wheel, double click, rectangle and keys.

const LEAST_GUTTER = 132;
/** @typedef {{cursor: number, point: (time: number) => void, drawCursor: (context: CanvasRenderingContext2D, theme: Theme, top: number, height: number) => void,
 *   stop: () => void, range: number[], gutter: number, span: () => number, setWindow: (next: number[]) => void, fit: () => void, read: () => void,
 *   scaleX: () => number, xOf: (time: number) => number, timeAt: (x: number) => number, shift: (by: number) => void,
 *   zoom: (at: number, factor: number) => void, keys: Record<string, () => void>, move: (dx: number) => void,
 *   rectangle: (x0: number, y0: number, x1: number) => void, listen: (view: View, keys?: Record<string, () => void>) => void}} TimeAxis */

/** Pixels left of the axis, in which the longest name is whole, with its idle share; both views have the same.
 * @param {string[]} names */
function gutterFor(names) {
  return Math.min(Math.max(LEAST_GUTTER, Math.ceil(74 + 6.4 * Math.max(0, ...names.map((name) => name.length)))), 320);
}

/** The axis of the traits `window` and `span_us`, right of a gutter for names; 8 pixels are left free at its end.
 * @param {Model} model @param {() => View} view which is made later @param {() => string[]} names of devices @returns {TimeAxis} */
function timeAxis(model, view, names) {
  const span = () => Math.max(model.get("span_us"), 1e-9);
  const shown = () => {
    const chosen = model.get("window");
    return chosen.length === 2 && chosen[1] > chosen[0] ? chosen : [0, span()];
  };
  const scaleX = () => (view().width - axis.gutter - 8) / (axis.range[1] - axis.range[0]);
  const middle = () => (axis.range[0] + axis.range[1]) / 2;
  const width = () => axis.range[1] - axis.range[0];
  const ended = new AbortController();
  const bench = () => view().host.closest(".bl-workbench") ?? view().host;
  const axis = /** @type {TimeAxis} */ ({
    cursor: UNSEEN,
    // The cursor is shared by the views of one workbench, in the page alone.
    point: (time) => {
      if (time !== axis.cursor) document.dispatchEvent(new CustomEvent("bl-cursor", { detail: { bench: bench(), time } }));
    },
    drawCursor: (context, theme, top, height) => {
      view().canvas.dataset.cursor = axis.cursor < 0 ? "" : String(axis.cursor);
      if (axis.cursor < axis.range[0] || axis.cursor > axis.range[1] || axis.cursor < 0) return;
      const x = Math.round(axis.xOf(axis.cursor)) + 0.5;
      drawLine(context, [x, top, x, height], theme.text, 1, [2, 3]);
    },
    stop: () => ended.abort(),
    range: shown(),
    gutter: gutterFor(names()),
    span,
    read: () => {
      axis.range = shown();
      axis.gutter = gutterFor(names());
    },
    setWindow: (next) => {
      axis.range = next;
      model.set("window", next);
      model.save_changes();
      view().redraw();
    },
    fit: () => axis.setWindow([0, span()]),
    scaleX,
    xOf: (time) => axis.gutter + (time - axis.range[0]) * scaleX(),
    timeAt: (x) => axis.range[0] + (x - axis.gutter) / scaleX(),
    shift: (wanted) => {
      const by = Math.min(Math.max(wanted, -axis.range[0]), span() - axis.range[1]);
      axis.setWindow([axis.range[0] + by, axis.range[1] + by]);
    },
    zoom: (at, factor) => axis.setWindow(zoomedWindow(axis.range, span(), at, factor)),
    move: (dx) => axis.shift(-dx / scaleX()),
    rectangle: (x0, y0, x1) => axis.setWindow([Math.max(axis.timeAt(x0), 0), Math.min(axis.timeAt(x1), span())]),
    keys: {
      ArrowLeft: () => axis.shift(-0.1 * width()), ArrowRight: () => axis.shift(0.1 * width()),
      "+": () => axis.zoom(middle(), 0.7), "=": () => axis.zoom(middle(), 0.7), "-": () => axis.zoom(middle(), 1.4),
      0: () => axis.fit(),
    },
    listen: ({ canvas, wantsWheel }, more = {}) => {
      const keys = { ...axis.keys, ...more };
      document.addEventListener("bl-cursor", (event) => {
        const { bench: other, time } = /** @type {CustomEvent} */ (event).detail;
        if (other !== bench()) return;
        axis.cursor = time;
        view().redraw();
      }, { signal: ended.signal });
      canvas.addEventListener("pointermove", (event) => {
        const [x] = pointer(view(), event);
        axis.point(x < axis.gutter ? UNSEEN : Math.min(axis.timeAt(x), span()));
      });
      canvas.addEventListener("pointerleave", () => axis.point(UNSEEN));
      canvas.addEventListener("dblclick", () => axis.fit());
      canvas.addEventListener("wheel", (event) => {
        if (!wantsWheel(event)) return;
        event.preventDefault();
        const [x] = pointer(view(), event);
        if (event.shiftKey) axis.shift(event.deltaY / scaleX());
        else axis.zoom(axis.timeAt(Math.max(x, axis.gutter)), Math.exp(event.deltaY * 0.0015));
      }, { passive: false });
      canvas.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || !keys[event.key]) return;
        keys[event.key]();
        event.preventDefault();
        event.stopPropagation();
      });
    },
  });
  return axis;
}
