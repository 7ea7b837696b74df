// Timeline view: one lane per device for compute and one for transfers, simulated above measured. Traits: see
// timeline_view.py. Bars narrower than a pixel are drawn as coverage per pixel column, so that a frame costs about as
// much as there are pixels, however many bars there are.

/** How strongly bars are drawn that are not selected, while others are. */
const FAINT = 0.25;

function render({ model, el }) {
  let bars = readBars(model);
  let lanes = model.get("lanes");
  let names = texts(model.get("names"));
  let colours = model.get("colors");
  let selected = new Set(model.get("selected"));
  let hovered = UNSEEN;
  let dim = readDim(model);
  let near = new Set([...model.get("inputs"), ...model.get("outputs")]);
  let tops = [];
  let coverage = new Float32Array(0);
  let cover = new Int16Array(0);
  let apart = new Uint8Array(0); // per pixel column, as bars.elsewhere
  let waits = readWaits(model);
  let batches = column({ b: model.get("batches") }, "b", "i4");
  let { shade, palette } = readShades(model, bars, colours);

  const view = frame(el, "Timeline", draw);
  const axis = timeAxis(model, () => view, GUTTER);
  const { span, setWindow, scaleX, xOf, timeAt } = axis;
  const strip = overviewStrip(() => view, axis);
  const reset = button("Fit", "show the whole step (0)", axis.fit);
  const zoomSelection = button("Zoom to selection", "show the selected ops from first to last", () => toSelection());
  const criticalButton = button("Critical path", "mark the ops and transfers that determine the makespan (c)", () => toggleCritical());
  const trace = button("Chrome trace", "download this timeline as a trace for Perfetto or chrome://tracing", () => model.send({ type: "trace" }));
  const measure = button("Statistics", "busy and idle time of what is shown, or of a range marked by Shift and a drag (s)", () => change({ measuring: !model.get("measuring") }));
  const colourBy = chooser("Colour", "what the bars' colours mean", (value) => change({ color_by: value }));
  const against = chooser("Against", "another placement on the same axis, with what moved", (value) => change({ against: value }));
  const title = element("span", { class: "bl-title" });
  view.toolbar.append(reset, zoomSelection, criticalButton, measure, trace, colourBy.whole, against.whole, element("span", { class: "bl-space" }), title);
  const legend = element("div", { class: "bl-legend" });
  const table = element("div", { class: "bl-statistics", hidden: true });
  view.host.insertBefore(legend, view.live);
  view.host.insertBefore(table, view.live);

  function change(traits) {
    for (const [name, value] of Object.entries(traits)) model.set(name, value);
    model.save_changes();
  }

  function toSelection() {
    let from = Infinity;
    let to = -Infinity;
    for (let b = 0; b < bars.op.length; b += 1) {
      if (!selected.has(bars.op[b])) continue;
      from = Math.min(from, bars.start[b]);
      to = Math.max(to, bars.end[b]);
    }
    if (from > to) return;
    const margin = Math.max((to - from) * 0.25, span() * 1e-6);
    setWindow([Math.max(from - margin, 0), Math.min(to + margin, span())]);
  }
  const toggleCritical = () => change({ critical: !model.get("critical") });

  function arrange() {
    tops = [];
    let y = STRIP + AXIS;
    for (const lane of lanes) {
      if (lane.heading) y += HEADING;
      const height = lane.kind === "transfers" ? TRANSFER_LANE : OP_LANE;
      tops.push([y, height]);
      y += height + (lane.kind === "transfers" ? 7 : 2);
    }
    view.stage.style.height = `${Math.max(y + 6, 70)}px`;
    const makespans = model.get("makespans");
    const bubbles = (origin) => {
      const idle = lanes.filter((lane) => lane.kind === "ops" && lane.origin === origin).map((lane) => lane.idle_share);
      return batches.length && idle.length ? `, ${((idle.reduce((a, b) => a + b, 0) / idle.length) * 100).toFixed(0)}% bubbles` : "";
    };
    title.textContent = Object.entries(makespans).map(([origin, value]) => `${origin} ${formatTime(value)}${bubbles(origin)}`).join("  ·  ");
  }

  /** Where a bar lies in its lane: sends in the upper half, receives in the lower. */
  function extent(lane, bar) {
    const [top, height] = tops[lane];
    if (lanes[lane].kind !== "transfers") return [top + 2, height - 4];
    return bars.peer[bar] >= 0 ? [top + 1, height / 2 - 1] : [top + height / 2, height / 2 - 1];
  }

  // -- drawing -------------------------------------------------------------------------------------

  function drawAxis(context, width, height, theme) {
    context.font = `11px ${theme.font}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.strokeStyle = theme.grid;
    context.fillStyle = theme.faint;
    context.lineWidth = 1;
    context.beginPath();
    for (const time of ticks(axis.range[0], axis.range[1], (width - GUTTER) / 110)) {
      const x = Math.round(xOf(time)) + 0.5;
      context.moveTo(x, STRIP + AXIS - 3);
      context.lineTo(x, height);
      drawTick(context, formatTime(time), x, width, STRIP + AXIS / 2);
    }
    context.stroke();
  }

  function drawGutter(context, theme) {
    context.fillStyle = theme.background;
    context.fillRect(0, STRIP, GUTTER - 2, view.height);
    context.textAlign = "left";
    lanes.forEach((lane, k) => {
      const [top, height] = tops[k];
      if (lane.heading) {
        context.font = `600 11px ${theme.font}`;
        context.fillStyle = theme.text;
        context.fillText(lane.heading, 4, top - HEADING / 2);
      }
      if (lane.kind === "transfers") {
        context.font = `10px ${theme.font}`;
        context.fillStyle = theme.faint;
        context.fillText("transfers", 18, top + height / 2);
      } else {
        context.fillStyle = colours[lane.device];
        context.fillRect(4, top + height / 2 - 5, 10, 10);
        context.font = `11px ${theme.font}`;
        context.fillStyle = theme.text;
        context.fillText(shortened(lane.label, 60, 11), 18, top + height / 2 + 0.5);
        context.fillStyle = theme.faint;
        context.textAlign = "right";
        context.fillText(`${(lane.idle_share * 100).toFixed(0)}% idle`, GUTTER - 6, top + height / 2 + 0.5);
        context.textAlign = "left";
      }
    });
  }

  /** Beside selected ops, and the neighbours of the explained one, all others are faint. */
  const faint = (bar) => selected.size > 0 && !selected.has(bars.op[bar]) && !near.has(bars.op[bar]);

  /** Bars of one lane: wide ones as rectangles by colour, narrow ones as coverage of pixel columns. */
  function drawLane(context, lane, width) {
    const scale = scaleX();
    const from = firstVisible(bars, lane, axis.range[0]);
    const until = bars.pointer[lane + 1];
    const wide = [];
    coverage.fill(0);
    cover.fill(-1);
    apart.fill(0);
    let narrow = false;
    for (let b = from; b < until && bars.start[b] < axis.range[1]; b += 1) {
      if (bars.end[b] < axis.range[0]) continue;
      const x = GUTTER + (bars.start[b] - axis.range[0]) * scale;
      const w = (bars.end[b] - bars.start[b]) * scale;
      if (w >= 1.5) wide.push(b);
      else if (!dim[bars.label[b]]) {
        const pixel = Math.min(Math.max(Math.floor(x), 0), width - 1);
        const kind = shade[b] * 2 + (bars.peer[b] >= 0 || lanes[lane].kind !== "transfers" ? 0 : 1);
        coverPixel(coverage, cover, pixel, w, kind, faint(b));
        apart[pixel] = bars.elsewhere[b] || apart[pixel];
        narrow = true;
      }
    }
    for (const b of wide) {
      const [y, h] = extent(lane, b);
      const x = Math.max(GUTTER + (bars.start[b] - axis.range[0]) * scale, GUTTER - 2);
      const end = Math.min(GUTTER + (bars.end[b] - axis.range[0]) * scale, width + 2);
      const w = Math.max(end - x - (end - x > 4 ? 0.7 : 0), 0.7);
      context.fillStyle = palette[shade[b] % palette.length];
      context.globalAlpha = dim[bars.label[b]] ? 0.12 : faint(b) ? FAINT : 1;
      context.fillRect(x, y, w, h);
      if (bars.elsewhere[b]) drawMoved(context, b, x, y, w);
    }
    context.globalAlpha = 1;
    if (narrow) drawCoverage(context, lane, width);
    return wide;
  }

  /** The upper edge of an op that is on another device in the placement beside this one has that device's colour. */
  function drawMoved(context, b, x, y, w) {
    context.fillStyle = textOn(palette[shade[b] % palette.length]);
    context.fillRect(x, y - 2, w, 6);
    context.fillStyle = colours[(bars.elsewhere[b] - 1) % colours.length];
    context.fillRect(x, y - 2, w, 5);
  }

  function drawCoverage(context, lane, width) {
    const [top, height] = tops[lane];
    const half = lanes[lane].kind === "transfers";
    let from = 0;
    const level = (p) => (cover[p] < 0 ? -1 : cover[p] * 64 + Math.max(1, Math.round(Math.min(coverage[p], 1) * LEVELS)));
    while (from < width) {
      const code = level(from);
      let to = from + 1;
      while (to < width && level(to) === code) to += 1;
      if (code >= 0) {
        const kind = Math.floor(code / 128);
        const full = 0.25 + (0.75 * (code % 64)) / LEVELS;
        context.globalAlpha = Math.floor(code / 64) % 2 ? full * FAINT : full;
        context.fillStyle = palette[(kind >> 1) % palette.length];
        const y = half ? top + 1 + (kind & 1) * (height / 2) : top + 2;
        context.fillRect(from, y, to - from, half ? height / 2 - 1 : height - 4);
      }
      from = to;
    }
    context.globalAlpha = 1;
    for (let p = 0; p < width; p += 1) {
      if (!apart[p]) continue;
      context.fillStyle = colours[(apart[p] - 1) % colours.length];
      context.fillRect(p, top, 1, 5);
    }
  }

  function drawText(context, lane, wide, theme) {
    if (lanes[lane].kind === "transfers") return;
    context.textBaseline = "middle";
    const named = wide.length <= 400 ? drawNames(context, lane, wide, theme) : [];
    if (batches.length) drawBatches(context, lane, named, theme);
  }

  /** Names on the bars that hold them, in front of them their micro-batch; gives the times at which these bars start. */
  function drawNames(context, lane, wide, theme) {
    const named = [];
    const least = batches.length ? 80 : 40;
    context.font = `10px ${theme.font}`;
    context.textAlign = "left";
    for (const b of wide) {
      const x = Math.max(xOf(bars.start[b]), GUTTER);
      const w = Math.min(xOf(bars.end[b]), view.width) - x;
      if (w < least) continue;
      const batch = batches[bars.label[b]] ?? UNSEEN;
      const [name, before] = batch < 0 ? [names[bars.label[b]] ?? "", ""] : [withoutBatch(names[bars.label[b]] ?? ""), `${batch} · `];
      const [y, h] = extent(lane, b);
      context.fillStyle = textOn(palette[shade[b] % palette.length]);
      context.fillText(shortened(before + name.slice(name.lastIndexOf("/") + 1), w - 8, 10), x + 4, y + h / 2 + 0.5);
      named.push(bars.start[b]);
    }
    return named;
  }

  /** Numbers of micro-batches where bars of one follow each other; bars that bear their names have it in there. */
  function drawBatches(context, lane, named, theme) {
    const [top, height] = tops[lane];
    context.font = `600 10px ${theme.font}`;
    context.textAlign = "center";
    for (const [batch, from, to] of batchRuns(bars, batches, lane, axis.range[0], axis.range[1], 3 / scaleX())) {
      const x0 = Math.max(xOf(from), GUTTER);
      const x1 = Math.min(xOf(to), view.width);
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
    for (let lane = 0; lane < lanes.length; lane += 1) {
      for (let b = firstVisible(bars, lane, axis.range[0]); b < bars.pointer[lane + 1] && bars.start[b] < axis.range[1]; b += 1) {
        if (bars.end[b] < axis.range[0]) continue;
        const chosen = selected.has(bars.op[b]);
        const critical = marked && bars.critical[b];
        if (!chosen && !critical && b !== hovered) continue;
        const [y, h] = extent(lane, b);
        const x = xOf(bars.start[b]);
        const w = Math.max(xOf(bars.end[b]) - x, 1);
        if (critical) {
          context.fillStyle = theme.danger;
          context.fillRect(x, y + h - 2, w, 3);
        }
        // Bars too narrow for an outline stand out by the others being faint: outlines would paint them over.
        if (b === hovered || (chosen && w > 4)) {
          context.strokeStyle = b === hovered ? theme.accent : theme.text;
          context.lineWidth = 1;
          context.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
        }
      }
    }
  }

  /** Of the explained op: from the end of what it reads to its start, and from its end to the start of its readers. */
  function arrows(context, theme) {
    const op = explained();
    if (op === UNSEEN) return;
    const places = new Map();
    const wanted = new Set([op, ...near, model.get("blamed")]);
    for (let lane = 0; lane < lanes.length && lanes[lane].origin === lanes[0].origin; lane += 1) {
      if (lanes[lane].kind === "transfers") continue;
      for (let b = bars.pointer[lane]; b < bars.pointer[lane + 1]; b += 1) {
        if (wanted.has(bars.op[b])) places.set(bars.op[b], [xOf(bars.start[b]), xOf(bars.end[b]), tops[lane][0] + tops[lane][1] / 2]);
      }
    }
    const link = (from, to) => {
      const [start, end] = [places.get(from), places.get(to)];
      if (!start || !end) return;
      context.lineWidth = from === model.get("blamed") && to === op ? 3 : 1;
      drawArrow(context, start, end);
    };
    context.strokeStyle = theme.text;
    context.globalAlpha = 0.8;
    for (const other of new Set([...model.get("inputs"), ...(model.get("blamed") < 0 ? [] : [model.get("blamed")])])) link(other, op);
    for (const other of model.get("outputs")) link(op, other);
    context.globalAlpha = 1;
  }

  function draw(context, width, height, theme) {
    if (coverage.length !== width) {
      coverage = new Float32Array(width);
      cover = new Int16Array(width);
      apart = new Uint8Array(width);
    }
    context.fillStyle = theme.background;
    context.fillRect(0, 0, width, height);
    drawAxis(context, width, height, theme);
    drawWaits(context, theme, axis, waits, tops);
    for (let lane = 0; lane < lanes.length; lane += 1) drawText(context, lane, drawLane(context, lane, width), theme);
    if (selected.size || model.get("critical") || hovered !== UNSEEN) outlines(context, theme);
    arrows(context, theme);
    drawRange(context, theme, axis, model.get("range"), width, height);
    context.textBaseline = "middle";
    drawGutter(context, theme);
    strip.draw(context, theme, bars, lanes, shade, palette);
    drawRectangle(view, context, theme);
    view.canvas.dataset.window = axis.range.join(" ");
  }

  // -- pointing ------------------------------------------------------------------------------------

  function barAt(x, y) {
    const lane = tops.findIndex(([top, height]) => y >= top && y < top + height);
    if (lane < 0 || x < GUTTER) return [UNSEEN, lane];
    const slack = 2 / scaleX();
    const time = timeAt(x);
    let best = UNSEEN;
    let nearest = Infinity;
    for (let b = firstVisible(bars, lane, time - slack); b < bars.pointer[lane + 1] && bars.start[b] <= time + slack; b += 1) {
      const [top, height] = extent(lane, b);
      if (y < top || y > top + height) continue;
      const away = Math.max(bars.start[b] - time, time - bars.end[b], 0);
      if (away <= slack && away < nearest) [nearest, best] = [away, b];
    }
    return [best, lane];
  }

  function laneFacts(lane) {
    const l = lanes[lane];
    const waited = [0, 0, 0, 0, 0];
    for (let w = waits.pointer[lane]; w < waits.pointer[lane + 1]; w += 1) waited[waits.kind[w]] += waits.end[w] - waits.start[w];
    const time = (us) => (us > 0 ? formatTime(us) : "");
    if (l.kind === "transfers") return [["transfers", String(bars.pointer[lane + 1] - bars.pointer[lane])], ["", "above: sent, below: received"]];
    return [
      ["busy", formatTime(l.busy_us)], ["idle", `${formatTime(l.idle_us)} (${(l.idle_share * 100).toFixed(1)}% of the step)`],
      ["for transfers", time(waited[TRANSFER_WAIT])], ["in queues", time(waited[QUEUE_WAIT])], ["for other devices", time(waited[2])],
      ["by order", time(waited[3])], ["nothing left", time(waited[NOTHING_LEFT])],
      ["bubbles", `${l.bubbles}, together ${formatTime(l.bubble_us)}`], ["longest", l.bubbles ? formatTime(l.longest_us) : ""],
    ];
  }

  function hover(x, y) {
    const [bar, lane] = barAt(x, y);
    if (bar !== UNSEEN) {
      const l = lanes[lane];
      const moved = l.kind === "transfers";
      showTooltip(view, x, y, names[bars.label[bar]] ?? "?", [
        [moved ? "transfer" : "device", moved ? describePeer(l, bar) : l.label],
        ["origin", l.origin], ["start", formatTime(bars.start[bar])],
        ["takes", formatTime(bars.end[bar] - bars.start[bar])], ["size", moved ? formatBytes(bars.bytes[bar]) : ""],
        ["micro-batch", (batches[bars.label[bar]] ?? -1) >= 0 ? String(batches[bars.label[bar]]) : ""],
        [model.get("color_by"), palette !== colours ? model.get("legend")[shade[bar]]?.label : ""],
        ["elsewhere", bars.elsewhere[bar] ? `on ${model.get("devices")[bars.elsewhere[bar] - 1] ?? "another device"} in the other placement` : ""],
      ]);
    } else if (lane >= 0 && x < GUTTER) showTooltip(view, x, y, `${lanes[lane].label}, ${lanes[lane].origin}`, laneFacts(lane));
    else if (lane >= 0 && waitAt(lane, x) !== UNSEEN) showWait(waitAt(lane, x), x, y);
    else showTooltip(view, 0, 0, "", []);
    if (bar !== hovered) {
      hovered = bar;
      view.redraw();
    }
  }

  function waitAt(lane, x) {
    const w = firstWait(waits, lane, timeAt(x));
    return w < waits.pointer[lane + 1] && waits.start[w] <= timeAt(x) ? w : UNSEEN;
  }

  function showWait(w, x, y) {
    const why = reason(waits.kind[w], names[waits.source[w]] ?? "", names[waits.op[w]] ?? "");
    showTooltip(view, x, y, `idle ${formatTime(waits.end[w] - waits.start[w])}`, [
      ["because", why], ["from", formatTime(waits.start[w])], ["to", formatTime(waits.end[w])],
    ]);
  }

  function describePeer(lane, bar) {
    const devices = model.get("devices");
    const peer = bars.peer[bar];
    return peer >= 0 ? `${lane.label} to ${devices[peer]}` : `${devices[-peer - 1]} to ${lane.label}`;
  }

  /** The op that is explained: the clicked one, whatever is selected with it, or the only one. */
  const explained = () => {
    const focus = model.get("focus");
    return selected.has(focus) ? focus : selected.size === 1 ? [...selected][0] : UNSEEN;
  };

  function select(ops, focus = UNSEEN) {
    selected = new Set(ops);
    model.set("focus", focus);
    model.set("selected", [...selected]);
    model.save_changes();
    describe();
    view.redraw();
  }

  function describe() {
    if (!selected.size) return view.say(model.get("status"));
    const rows = [];
    const op = explained();
    for (let lane = 0; op !== UNSEEN && lane < lanes.length && rows.length < 4; lane += 1) {
      if (lanes[lane].kind === "transfers") continue;
      for (let b = bars.pointer[lane]; b < bars.pointer[lane + 1] && rows.length < 4; b += 1) {
        if (bars.op[b] === op) rows.push(`${names[bars.label[b]]} on ${lanes[lane].label}, ${lanes[lane].origin}: ${formatTime(bars.start[b])} to ${formatTime(bars.end[b])}`);
      }
    }
    const why = model.get("why");
    const count = selected.size === 1 ? [] : [`${selected.size} ops selected`];
    return view.say([...count, ...rows, ...(why ? [`why then: ${why}`] : [])].join("  ·  "));
  }

  strip.listen();
  gestures(view, {
    move: axis.move,
    hover,
    click: (x, y, event) => {
      const [bar] = barAt(x, y);
      if (bar === UNSEEN || bars.op[bar] < 0) return select([]);
      if (!(event.shiftKey || event.ctrlKey || event.metaKey)) return select([bars.op[bar]], bars.op[bar]);
      const next = new Set(selected);
      if (!next.delete(bars.op[bar])) next.add(bars.op[bar]);
      return select(next);
    },
    rectangle: (x0, y0, x1) => change({ range: [Math.max(timeAt(x0), 0), Math.min(timeAt(x1), span())], measuring: true }),
  });

  function neighbour(by) {
    const current = bars.op.findIndex((op) => selected.has(op));
    const next = current < 0 ? 0 : current + by;
    if (next >= 0 && next < bars.op.length && bars.op[next] >= 0) select([bars.op[next]], bars.op[next]);
  }
  const keys = {
    Escape: () => { change({ range: [] }); select([]); }, s: () => change({ measuring: !model.get("measuring") }), n: () => neighbour(1), p: () => neighbour(-1), c: () => toggleCritical(), z: () => toSelection(),
  };
  axis.listen(view, keys);

  function rebuild() {
    bars = readBars(model);
    lanes = model.get("lanes");
    colours = model.get("colors");
    waits = readWaits(model);
    batches = column({ b: model.get("batches") }, "b", "i4");
    hovered = UNSEEN;
    axis.read();
    recolour();
    arrange();
    describe();
    view.redraw();
  }
  function recolour() {
    ({ shade, palette } = readShades(model, bars, colours));
    strip.changed();
    colourBy.offer(model.get("colorings").map((name) => [name, name]), model.get("color_by"));
    against.offer([["", "nothing"], ...model.get("choices")], model.get("against"));
    const told = model.get("choices").find(([key]) => key === model.get("against"));
    const moved = new Set();
    bars.elsewhere.forEach((other, b) => { if (other) moved.add(bars.label[b]); });
    legend.replaceChildren(...legendOf(model, told ? told[1] : "", moved.size));
    view.canvas.dataset.moved = String(moved.size);
    view.redraw();
  }

  /** The table of statistics, while it is wanted. */
  function tabulate() {
    const rows = model.get("statistics");
    const marked = model.get("range").length === 2;
    measure.setAttribute("aria-pressed", String(Boolean(model.get("measuring"))));
    table.hidden = !model.get("measuring");
    if (table.hidden) return;
    const range = marked ? model.get("range") : axis.range;
    const zoom = button("Zoom to range", "show just the marked range", () => setWindow(model.get("range")));
    const clear = button("Clear range", "mark nothing (Esc)", () => change({ range: [] }));
    table.replaceChildren(...statisticsTable(rows, range, marked, marked ? [zoom, clear] : []));
  }
  function readNear() {
    near = new Set([...model.get("inputs"), ...model.get("outputs")]);
    view.redraw();
  }
  const pressed = () => criticalButton.setAttribute("aria-pressed", String(Boolean(model.get("critical"))));
  pressed();
  arrange();
  recolour();
  tabulate();
  describe();

  const stop = listen(model, {
    bars: rebuild,
    lanes: rebuild,
    span_us: rebuild,
    makespans: rebuild,
    names: () => { names = texts(model.get("names")); view.redraw(); },
    selected: () => { selected = new Set(model.get("selected")); describe(); view.redraw(); },
    window: () => { axis.read(); view.redraw(); },
    waits: rebuild,
    kinds: recolour,
    legend: recolour,
    choices: recolour,
    against: recolour,
    batches: rebuild,
    statistics: tabulate,
    measuring: tabulate,
    range: () => { tabulate(); view.redraw(); },
    critical: () => { pressed(); view.redraw(); },
    status: describe,
    why: describe,
    inputs: readNear,
    outputs: readNear,
    dim: () => { dim = readDim(model); view.redraw(); },
  });
  const onMessage = (message, buffers) => {
    if (message.type !== "download") return;
    const link = element("a", { download: message.name, href: URL.createObjectURL(new Blob([buffers[0]], { type: message.mime })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  model.on("msg:custom", onMessage);
  return () => { stop(); model.off("msg:custom", onMessage); view.close(); };
}

export default { render };
