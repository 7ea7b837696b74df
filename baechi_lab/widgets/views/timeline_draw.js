// Draws the timeline: bars, their names, idle time, marks. Bars narrower than a pixel are drawn as coverage per pixel column,
// so that a frame costs about as much as there are pixels, however many bars there are. Python joins this text behind
// timeline_parts.js.

/** How strongly bars are drawn that are not selected, while others are. */
const FAINT = 0.45;

/** What is drawn, as the view last read it from its traits; `hovered` is a bar, `near` the neighbours of the explained op.
 * @param {Model} model */
function readState(model) {
  const bars = readBars(model);
  const colours = model.get("colors");
  return {
    bars, lanes: model.get("lanes"), names: texts(model.get("names")), colours, selected: new Set(model.get("selected")),
    hovered: UNSEEN, dim: readDim(model), near: new Set([...model.get("inputs"), ...model.get("outputs")]),
    /** @type {Tops} */
    tops: [],
    /** @type {string[]} */
    headings: [],
    waits: readWaits(model), batches: column({ b: model.get("batches") }, "b", "i4"), ...readShades(model, bars, colours),
    // Per pixel column: how much of it is covered, by what, and as bars.elsewhere.
    coverage: new Float32Array(0), cover: new Int16Array(0), apart: new Uint8Array(0),
  };
}

/** Functions that draw a state.
 * @param {ReturnType<typeof readState>} s @param {Model} model @param {() => View} canvas which is made later @param {TimeAxis} axis
 * @param {ReturnType<typeof overviewStrip>} strip @param {() => number} explained the op that arrows belong to */
function timelinePainter(s, model, canvas, axis, strip, explained) {
  const { scaleX, xOf } = axis;

  /** Where a bar lies in its lane: sends in the upper half, receives in the lower. */
  function extent(lane, bar) {
    const [top, height] = s.tops[lane];
    if (s.lanes[lane].kind !== "transfers") return [top + 2, height - 4];
    return s.bars.peer[bar] >= 0 ? [top + 1, height / 2 - 1] : [top + height / 2, height / 2 - 1];
  }


  function drawAxis(context, width, height, theme) {
    context.font = `11px ${theme.font}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.strokeStyle = theme.grid;
    context.fillStyle = theme.faint;
    context.lineWidth = 1;
    context.beginPath();
    const marks = ticks(axis.range[0], axis.range[1], (width - axis.gutter) / 110), labels = tickLabels(marks);
    for (const [k, time] of marks.entries()) {
      const x = Math.round(xOf(time)) + 0.5;
      context.moveTo(x, STRIP + AXIS - 3);
      context.lineTo(x, height);
      drawTick(context, labels[k], x, axis.gutter, width, STRIP + AXIS / 2);
    }
    context.stroke();
  }

  /** A start for which no placement fits has no timeline. */
  function drawNothing(context, theme) {
    context.font = `12px ${theme.font}`;
    context.textAlign = "left";
    context.fillStyle = theme.faint;
    context.fillText("no timeline: no placement fits yet", axis.gutter, STRIP + AXIS / 2);
  }

  function drawGutter(context, theme) {
    context.fillStyle = theme.background;
    context.fillRect(0, STRIP, axis.gutter - 2, canvas().height);
    context.textAlign = "left";
    s.lanes.forEach((lane, k) => {
      const [top, height] = s.tops[k];
      if (s.headings[k]) {
        context.font = `600 11px ${theme.font}`;
        context.fillStyle = theme.text;
        context.fillText(s.headings[k], 4, top - HEADING / 2);
      }
      if (!height) return;
      if (lane.folded && model.get("fold_idle")) {
        context.font = `11px ${theme.font}`;
        context.fillStyle = theme.faint;
        context.fillText(lane.fold_label, 18, top + height / 2 + 0.5);
      } else if (lane.kind !== "ops") {
        context.font = `10px ${theme.font}`;
        context.fillStyle = theme.faint;
        context.fillText(lane.kind, 18, top + height / 2);
      } else {
        context.fillStyle = s.colours[lane.device];
        context.fillRect(4, top + height / 2 - 5, 10, 10);
        context.font = `11px ${theme.font}`;
        context.fillStyle = theme.text;
        context.fillText(shortened(lane.label, axis.gutter - (s.batches.length ? 84 : 72), 11), 18, top + height / 2 + 0.5);
        context.fillStyle = theme.faint;
        if (s.batches.length) context.font = `10px ${theme.font}`;
        context.textAlign = "right";
        context.fillText(`${formatShare(lane.idle_share)} ${s.batches.length ? "bubble" : "idle"}`, axis.gutter - 6, top + height / 2 + 0.5);
        context.textAlign = "left";
      }
    });
    canvas().canvas.dataset.headings = s.headings.filter(Boolean).join("|");
  }

  /** What the view dims is faint; beside selected ops, and the neighbours of the explained one, all others are. */
  const faint = (bar) => s.dim[s.bars.label[bar]] > 0 || (s.selected.size > 0 && !s.selected.has(s.bars.op[bar]) && !s.near.has(s.bars.op[bar]));

  /** Bars of one lane: wide ones as rectangles by colour, narrow ones as coverage of pixel columns. */
  function drawLane(context, lane, width, theme) {
    const scale = scaleX();
    const from = firstVisible(s.bars, lane, axis.range[0]);
    const until = s.bars.pointer[lane + 1];
    const wide = [];
    s.coverage.fill(0);
    s.cover.fill(-1);
    s.apart.fill(0);
    let narrow = false;
    /** @type {CanvasPattern | string | undefined} */
    let hatch;
    for (let b = from; b < until && s.bars.start[b] < axis.range[1]; b += 1) {
      if (s.bars.end[b] < axis.range[0]) continue;
      const x = axis.gutter + (s.bars.start[b] - axis.range[0]) * scale;
      const w = (s.bars.end[b] - s.bars.start[b]) * scale;
      if (w >= 1.5) wide.push(b);
      else {
        const kind = s.shade[b] * 2 + (s.bars.peer[b] >= 0 || s.lanes[lane].kind !== "transfers" ? 0 : 1);
        const pixel = coverBar(s.coverage, s.cover, x, w, kind, faint(b));
        s.apart[pixel] = s.bars.elsewhere[b] || s.apart[pixel];
        narrow = true;
      }
    }
    for (const b of wide) {
      const [y, h] = extent(lane, b);
      const x = Math.max(axis.gutter + (s.bars.start[b] - axis.range[0]) * scale, axis.gutter - 2);
      const end = Math.min(axis.gutter + (s.bars.end[b] - axis.range[0]) * scale, width + 2);
      const w = barWidth(end - x);
      context.fillStyle = s.palette[s.shade[b] % s.palette.length];
      context.globalAlpha = faint(b) ? FAINT : 1;
      context.fillRect(x, y, w, h);
      if (w > 3 && isHatched(model.get("phase_colors"), s.classes, s.shade[b])) {
        context.fillStyle = hatch ??= hatchOf(context, [[0, 6, 6, 0]], "#FFFFFF") ?? "";
        context.fillRect(x, y, w, h);
      }
      if (s.bars.elsewhere[b]) drawMoved(context, b, x, y, w);
    }
    context.globalAlpha = 1;
    if (narrow) drawCoverage(context, lane, width, theme);
    return wide;
  }

  /** The upper edge of an op that is on another device in the placement beside this one has that device's colour. */
  function drawMoved(context, b, x, y, w) {
    context.fillStyle = textOn(s.palette[s.shade[b] % s.palette.length]);
    context.fillRect(x, y - 2, w, 6);
    context.fillStyle = s.colours[(s.bars.elsewhere[b] - 1) % s.colours.length];
    context.fillRect(x, y - 2, w, 5);
  }

  function drawCoverage(context, lane, width, theme) {
    const [top, height] = s.tops[lane];
    const half = s.lanes[lane].kind === "transfers";
    let from = 0;
    const level = (p) => (s.cover[p] < 0 ? -1 : s.cover[p] * 64 + Math.max(1, Math.round(Math.min(s.coverage[p], 1) * LEVELS)));
    while (from < width) {
      const code = level(from);
      let to = from + 1;
      while (to < width && level(to) === code) to += 1;
      if (code >= 0) {
        const kind = Math.floor(code / 128);
        const full = 0.25 + (0.75 * (code % 64)) / LEVELS;
        context.globalAlpha = Math.floor(code / 64) % 2 ? full * FAINT : full;
        context.fillStyle = s.palette[(kind >> 1) % s.palette.length];
        const y = half ? top + 1 + (kind & 1) * (height / 2) : top + 2;
        context.fillRect(from, y, to - from, half ? height / 2 - 1 : height - 4);
      }
      from = to;
    }
    context.globalAlpha = 1;
    context.fillStyle = theme.text;
    for (let p = 0; s.selected.size && p < width; p += 1) {
      if (s.cover[p] >= 0 && s.cover[p] % 2 === 0) context.fillRect(p, top - 1, 1, 2); // a chosen bar too narrow to be seen
    }
    for (let p = 0; p < width; p += 1) {
      if (!s.apart[p]) continue;
      context.fillStyle = s.colours[(s.apart[p] - 1) % s.colours.length];
      context.fillRect(p, top, 1, 5);
    }
  }

  function drawText(context, lane, wide, theme) {
    if (s.lanes[lane].kind === "transfers") return;
    context.textBaseline = "middle";
    const named = wide.length <= 400 ? drawNames(context, lane, wide, theme) : [];
    if (s.batches.length) drawBatches(context, lane, named, theme);
  }

  /** Names on the bars that hold them, in front of them their micro-batch; gives the times at which these bars start. */
  function drawNames(context, lane, wide, theme) {
    const named = [];
    const least = s.batches.length ? 80 : 40;
    context.font = `10px ${theme.font}`;
    context.textAlign = "left";
    for (const b of wide) {
      const x = Math.max(xOf(s.bars.start[b]), axis.gutter);
      const w = Math.min(xOf(s.bars.end[b]), canvas().width) - x;
      if (w < least) continue;
      const batch = s.batches[s.bars.label[b]] ?? UNSEEN;
      const [name, before] = batch < 0 ? [s.names[s.bars.label[b]] ?? "", ""] : [withoutBatch(s.names[s.bars.label[b]] ?? ""), `${batch} · `];
      const [y, h] = extent(lane, b);
      context.fillStyle = textOn(s.palette[s.shade[b] % s.palette.length]);
      context.fillText(shortened(before + name.slice(name.lastIndexOf("/") + 1), w - 8, 10), x + 4, y + h / 2 + 0.5);
      named.push(s.bars.start[b]);
    }
    return named;
  }

  /** Numbers of micro-batches where bars of one follow each other; bars that bear their names have it in there. */
  function drawBatches(context, lane, named, theme) {
    const [top, height] = s.tops[lane];
    context.font = `600 10px ${theme.font}`;
    context.textAlign = "center";
    for (const [batch, from, to] of batchRuns(s.bars, s.batches, lane, axis.range[0], axis.range[1], 3 / scaleX())) {
      const x0 = Math.max(xOf(from), axis.gutter);
      const x1 = Math.min(xOf(to), canvas().width);
      const text = String(batch);
      const w = text.length * 6 + 4;
      if (x1 - x0 < w || named.some((start) => start >= from && start < to)) continue;
      context.fillStyle = theme.background;
      context.globalAlpha = 0.8;
      context.fillRect((x0 + x1 - w) / 2, top + height / 2 - 6, w, 12);
      context.globalAlpha = 1;
      context.fillStyle = theme.text;
      context.fillText(text, (x0 + x1) / 2, top + height / 2 + 0.5);
    }
  }

  function outlines(context, theme) {
    const marked = model.get("critical");
    for (let lane = 0; lane < s.lanes.length; lane += 1) {
      for (let b = firstVisible(s.bars, lane, axis.range[0]); b < s.bars.pointer[lane + 1] && s.bars.start[b] < axis.range[1]; b += 1) {
        if (s.bars.end[b] < axis.range[0]) continue;
        const chosen = s.selected.has(s.bars.op[b]);
        const critical = marked && s.bars.critical[b];
        if (!chosen && !critical && b !== s.hovered) continue;
        const [y, h] = extent(lane, b);
        const x = xOf(s.bars.start[b]);
        const w = Math.max(xOf(s.bars.end[b]) - x, 1);
        if (critical) {
          context.fillStyle = theme.danger;
          context.fillRect(x, y + h - 2, w, 3);
        }
        // Bars too narrow for an outline stand out by the others being faint: outlines would paint them over.
        if (b === s.hovered || (chosen && w > 4)) {
          context.strokeStyle = b === s.hovered ? theme.accent : theme.text;
          context.lineWidth = 1;
          context.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
        }
      }
    }
  }

  /** Of the explained op: from the end of what it reads to its start, and from its end to the start of its readers.
   * Gives how many were drawn. */
  function arrows(context, theme) {
    const op = explained();
    if (op === UNSEEN) return 0;
    let drawn = 0;
    const places = new Map();
    const wanted = new Set([op, ...s.near, model.get("blamed")]);
    for (let lane = 0; lane < s.lanes.length && s.lanes[lane].origin === s.lanes[0].origin; lane += 1) {
      if (s.lanes[lane].kind === "transfers") continue;
      for (let b = s.bars.pointer[lane]; b < s.bars.pointer[lane + 1]; b += 1) {
        if (wanted.has(s.bars.op[b])) places.set(s.bars.op[b], [xOf(s.bars.start[b]), xOf(s.bars.end[b]), s.tops[lane][0] + s.tops[lane][1] / 2]);
      }
    }
    const link = (from, to) => {
      const [start, end] = [places.get(from), places.get(to)];
      if (!start || !end) return;
      context.lineWidth = from === model.get("blamed") && to === op ? 3 : 1;
      drawArrow(context, start, end);
      drawn += 1;
    };
    context.strokeStyle = theme.text;
    context.globalAlpha = 0.8;
    for (const other of new Set([...model.get("inputs"), ...(model.get("blamed") < 0 ? [] : [model.get("blamed")])])) link(other, op);
    for (const other of model.get("outputs")) link(op, other);
    context.globalAlpha = 1;
    return drawn;
  }

  function draw(context, width, height, theme) {
    if (s.coverage.length !== width) {
      s.coverage = new Float32Array(width);
      s.cover = new Int16Array(width);
      s.apart = new Uint8Array(width);
    }
    context.fillStyle = theme.background;
    context.fillRect(0, 0, width, height);
    drawAxis(context, width, height, theme);
    if (!s.lanes.length) drawNothing(context, theme);
    drawWaits(context, theme, axis, s.waits, s.tops);
    for (let lane = 0; lane < s.lanes.length; lane += 1) drawText(context, lane, drawLane(context, lane, width, theme), theme);
    if (s.selected.size || model.get("critical") || s.hovered !== UNSEEN) outlines(context, theme);
    canvas().canvas.dataset.arrows = String(arrows(context, theme));
    drawRange(context, theme, axis, model.get("range"), width, height);
    axis.drawCursor(context, theme, STRIP + AXIS, height);
    context.textBaseline = "middle";
    drawGutter(context, theme);
    strip.draw(context, theme, s.bars, s.lanes, s.shade, s.palette);
    drawRectangle(canvas(), context, theme);
    canvas().canvas.dataset.window = axis.range.join(" ");
  }

  return { draw, extent };
}
