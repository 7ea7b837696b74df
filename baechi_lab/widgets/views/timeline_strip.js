// The strip above the timeline: the whole step, every device a thin row, and the window of time that is shown. The window
// is dragged, its ends are dragged, and a click elsewhere brings it there. Python joins this text behind timeline_data.js.

const STRIP = 30;
const GRIP = 5;

/** What a point of the strip does: move the window, one of its ends, or (elsewhere) bring the window there.
 * @param {number} x @param {number} left where the window begins @param {number} right where it ends
 * @returns {"start" | "end" | "move" | "bring"} */
function stripPart(x, left, right) {
  if (Math.abs(x - left) <= GRIP && Math.abs(x - left) <= Math.abs(x - right)) return "start";
  if (Math.abs(x - right) <= GRIP) return "end";
  return x > left && x < right ? "move" : "bring";
}

/** The window after dragging a part of it by some time; it stays inside the step and is never empty.
 * @param {"start" | "end" | "move" | "bring"} part @param {number[]} window @param {number} by @param {number} span */
function draggedWindow(part, [from, to], by, span) {
  const least = span * 1e-4;
  if (part === "start") return [Math.min(Math.max(from + by, 0), to - least), to];
  if (part === "end") return [from, Math.max(Math.min(to + by, span), from + least)];
  const allowed = Math.min(Math.max(by, -from), span - to);
  return [from + allowed, to + allowed];
}

/** Which devices share a row of the strip, as `[first, last)`: those that work, each in a row of its own while a row has two
 * pixels, else several next to each other. @param {number} count @returns {number[][]} */
function stripBands(count) {
  const rows = Math.min(count, (STRIP - 6) / 2);
  return Array.from({ length: rows }, (_, row) => [Math.floor((row * count) / rows), Math.floor(((row + 1) * count) / rows)]);
}

/** The picture of the whole step, made anew only when what it shows changes.
 * @param {() => View} view @param {TimeAxis} axis */
function overviewStrip(view, axis) {
  const image = document.createElement("canvas");
  let madeFor = "";
  /** @type {{part: "start" | "end" | "move" | "bring", x: number, window: number[]} | null} */
  let drag = null;
  const width = () => Math.max(view().width - axis.gutter - 8, 1);
  /** @param {number} time */
  const xOf = (time) => axis.gutter + (time / axis.span()) * width();
  /** @param {number} x */
  const timeAt = (x) => ((x - axis.gutter) / width()) * axis.span();
  const edges = () => [xOf(axis.range[0]), xOf(axis.range[1])];

  /** @param {Bars} bars @param {any[]} lanes @param {ArrayLike<number>} shade @param {string[]} palette */
  function make(bars, lanes, shade, palette) {
    const all = lanes.map((lane, k) => [lane, k]).filter(([lane, k]) => lane.kind === "ops" && lane.origin === lanes[0].origin && bars.pointer[k + 1] > bars.pointer[k]);
    const bands = stripBands(all.length);
    const wide = Math.ceil(width());
    image.width = wide;
    image.height = STRIP - 6;
    const context = /** @type {CanvasRenderingContext2D} */ (image.getContext("2d"));
    const tall = (STRIP - 6) / Math.max(bands.length, 1);
    const scale = wide / axis.span();
    bands.forEach(([first, last], row) => {
      const filled = new Float32Array(wide + 1);
      const cover = new Int16Array(wide + 1).fill(-1);
      for (const [, lane] of all.slice(first, last)) {
        for (let b = bars.pointer[lane]; b < bars.pointer[lane + 1]; b += 1) {
          const from = bars.start[b] * scale;
          const to = bars.end[b] * scale;
          for (let p = Math.floor(from); p <= to && p < wide; p += 1) {
            filled[p] += (Math.min(to, p + 1) - Math.max(from, p)) / (last - first);
            cover[p] = shade[b];
          }
        }
      }
      for (let p = 0; p < wide; p += 1) {
        if (cover[p] < 0) continue;
        context.globalAlpha = 0.25 + 0.75 * Math.min(filled[p], 1);
        context.fillStyle = palette[cover[p] % palette.length];
        context.fillRect(p, row * tall, 1, Math.max(tall - 1, 1));
      }
    });
  }

  return {
    changed: () => { madeFor = ""; },
    /** @param {CanvasRenderingContext2D} context @param {Theme} theme @param {Bars} bars @param {any[]} lanes
     * @param {ArrayLike<number>} shade @param {string[]} palette */
    draw: (context, theme, bars, lanes, shade, palette) => {
      const key = `${width()} ${axis.span()} ${palette}`;
      if (key !== madeFor && lanes.length) {
        make(bars, lanes, shade, palette);
        madeFor = key;
      }
      context.fillStyle = theme.background;
      context.fillRect(0, 0, view().width, STRIP);
      if (lanes.length) context.drawImage(image, axis.gutter, 2);
      const [left, right] = edges();
      context.fillStyle = theme.background;
      context.globalAlpha = 0.65;
      context.fillRect(axis.gutter, 0, left - axis.gutter, STRIP);
      context.fillRect(right, 0, axis.gutter + width() - right, STRIP);
      context.globalAlpha = 1;
      context.strokeStyle = theme.text;
      context.lineWidth = 1;
      context.strokeRect(left + 0.5, 0.5, Math.max(right - left - 1, 1), STRIP - 3);
      context.fillStyle = theme.text;
      for (const x of [left, right]) context.fillRect(x - 1.5, STRIP / 2 - 7, 3, 11);
      context.strokeStyle = theme.grid;
      context.strokeRect(0, STRIP - 0.5, view().width, 0);
    },
    /** Take what is pointed at in the strip, before the view's own gestures see it. */
    listen: () => {
      const { canvas } = view();
      const end = (/** @type {PointerEvent} */ event) => {
        if (drag) event.stopImmediatePropagation();
        drag = null;
      };
      canvas.addEventListener("pointerdown", (event) => {
        const [x, y] = pointer(view(), event);
        if (event.button !== 0 || y >= STRIP || x < axis.gutter) return;
        event.stopImmediatePropagation();
        canvas.focus({ preventScroll: true });
        canvas.setPointerCapture(event.pointerId);
        const [left, right] = edges();
        const part = stripPart(x, left, right);
        if (part === "bring") axis.shift(timeAt(x) - (axis.range[0] + axis.range[1]) / 2);
        drag = { part: part === "bring" ? "move" : part, x, window: axis.range };
      });
      canvas.addEventListener("pointermove", (event) => {
        const [x, y] = pointer(view(), event);
        const over = y < STRIP && x >= axis.gutter;
        canvas.style.cursor = !drag && !over ? "" : ["start", "end"].includes(drag?.part ?? stripPart(x, edges()[0], edges()[1])) ? "ew-resize" : "grab";
        if (!drag) return;
        event.stopImmediatePropagation();
        axis.setWindow(draggedWindow(drag.part, drag.window, timeAt(x) - timeAt(drag.x), axis.span()));
      });
      canvas.addEventListener("pointerup", end);
      canvas.addEventListener("pointercancel", end);
    },
  };
}
