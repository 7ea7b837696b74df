// Timeline view: one lane per device for compute, one for collectives if any, one for transfers, simulated above measured. Traits: see
// timeline_view.py.

function render({ model, el }) {
  const s = readState(model);
  const view = frame(el, "Timeline", (...args) => draw(...args));
  const axis = timeAxis(model, () => view, () => model.get("lanes").map((/** @type {any} */ lane) => lane.label));
  const { span, setWindow, timeAt } = axis;
  const strip = overviewStrip(() => view, axis);
  const { draw, extent } = timelinePainter(s, model, () => view, axis, strip, () => explained());
  const search = /** @type {HTMLInputElement} */ (element("input", {
    type: "search", placeholder: "search ops", "aria-label": "search ops on the timeline",
    title: "Enter or ↓ selects the next op whose name contains this, ↑ the one before (/)",
  }));
  let hit = { op: UNSEEN, text: "" }; // the op that the last search selected; without one, what stands until the keys go elsewhere
  const reset = button("Whole", "show the whole step (0)", axis.fit);
  const zoomSelection = button("Zoom to selection", "show the selected ops from first to last", () => toSelection());
  const criticalButton = button("Critical path", "mark the ops and transfers that determine the makespan; an op with no transfer before it waited for an op of its device (c)", () => toggleCritical());
  const trace = button("Chrome trace", "download this timeline as a trace for Perfetto or chrome://tracing", () => model.send({ type: "trace" }));
  const measure = button("Statistics", "busy and idle time of what is shown, or of a range marked by Shift and a drag (s)", () => change({ measuring: !model.get("measuring") }));
  const foldButton = button("Fold idle", "devices that do nothing as one line (i)", () => change({ fold_idle: !model.get("fold_idle") }));
  let scale = 1; // of the lanes' heights
  let stretching = false; // a drag over the lanes' names is under way: it changes their height
  const colourBy = chooser("Colour", "what the bars' colours mean", (value) => change({ color_by: value }));
  const against = chooser("Against", "another placement on the same axis, with what moved", (value) => change({ against: value }));
  const title = element("span", { class: "bl-title" });
  view.toolbar.append(search, reset, zoomSelection, criticalButton, measure, trace, foldButton, colourBy.whole, against.whole, view.tail);
  view.tail.prepend(title);
  view.describe(
    "What each device computes, sends and receives, over time; the op that is selected is explained below it.",
    {
      "← →": "move in time", "+, -": "zoom", 0: "show the whole step", "n, p": "select the next, the previous op", z: "zoom to the selection", "/": "search an op by its name",
      c: "mark the critical path", i: "devices that do nothing as one line, or each", "[, ]": "lower, higher lanes, as a drag over their names", s: "statistics of what is shown", Escape: "select nothing", "?": "show or hide these keys",
    },
    () => ({
      caption: "Ops and transfers in what is shown", head: ["op", "lane", "origin", "start", "takes"],
      ...visibleRows(s, axis.range, model.get("span_us")),
    }));
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
    for (let b = 0; b < s.bars.op.length; b += 1) {
      if (!s.selected.has(s.bars.op[b])) continue;
      from = Math.min(from, s.bars.start[b]);
      to = Math.max(to, s.bars.end[b]);
    }
    if (from > to) return;
    const margin = Math.max((to - from) * 0.25, span() * 1e-6);
    setWindow([Math.max(from - margin, 0), Math.min(to + margin, span())]);
  }
  const toggleCritical = () => change({ critical: !model.get("critical") });

  function arrange() {
    const arranged = arrangeLanes(s.lanes, Boolean(model.get("fold_idle")), model.get("lane_scale"), STRIP + AXIS);
    const y = arranged.bottom;
    [s.tops, s.headings] = [arranged.tops, arranged.headings];
    scale = arranged.scale;
    view.canvas.dataset.lanes = String(s.tops.filter(([, height]) => height > 0).length);
    foldButton.hidden = !s.lanes.some((lane) => lane.folded);
    foldButton.setAttribute("aria-pressed", String(!foldButton.hidden && Boolean(model.get("fold_idle"))));
    view.stage.style.height = `${Math.max(y + 6, 70)}px`;
    title.textContent = makespansInWords(s, model.get("makespans"));
  }

  const { barAt, hover } = timelinePointer(s, model, view, axis, extent);

  /** The op that is explained: the clicked one, whatever is selected with it, or the only one. */
  const explained = () => {
    const focus = model.get("focus");
    return s.selected.has(focus) ? focus : s.selected.size === 1 ? [...s.selected][0] : UNSEEN;
  };

  /** Where a search or a key goes on from: the op that was clicked or found last. The kernel may still answer earlier keys by their
   * selections, which must not lead back. */
  const latest = () => (model.get("focus") === UNSEEN ? explained() : model.get("focus"));

  function select(ops, focus = UNSEEN) {
    s.selected = new Set(ops);
    model.set("focus", focus);
    model.set("selected", [...s.selected]);
    model.save_changes();
    describe();
    view.redraw();
  }

  const describe = () => {
    if (hit.op === UNSEEN && hit.text) return view.say(hit.text);
    const searched = hit.op !== UNSEEN && hit.op === explained() ? [hit.text] : [];
    return view.say(s.selected.size ? [...searched, selectionInWords(s, model, explained())].join("  ·  ") : model.get("status"));
  };

  search.addEventListener("blur", () => {
    if (hit.op !== UNSEEN) return;
    hit.text = "";
    describe();
  });

  search.addEventListener("keydown", (event) => {
    const by = { Enter: 1, ArrowDown: 1, ArrowUp: -1 }[event.key]; // Shift and Enter runs the cell of a notebook
    if (by === undefined || event.shiftKey || !search.value) return undefined;
    event.preventDefault();
    event.stopPropagation();
    const bars = firstBarsNamed(s, search.value);
    const quoted = `“${search.value}”`;
    if (!bars.length) {
      hit = { op: UNSEEN, text: `no op's name contains ${quoted}` };
      return describe();
    }
    const at = bars.findIndex((bar) => s.bars.op[bar] === latest());
    const next = at < 0 ? 0 : (at + by + bars.length) % bars.length;
    const op = s.bars.op[bars[next]];
    hit = { op, text: `${(next + 1).toLocaleString("en")} of ${opsInWords(bars.length)} with ${quoted}` };
    select([op], op);
    const [start, end] = [s.bars.start[bars[next]], s.bars.end[bars[next]]];
    if (start < axis.range[0] || end > axis.range[1]) axis.shift((start + end - axis.range[0] - axis.range[1]) / 2);
    return undefined;
  });

  const stretch = (/** @type {number} */ factor) => {
    model.set("lane_scale", Math.min(Math.max(scale * factor, LEAST_SCALE), MOST_SCALE));
    model.save_changes();
  };
  view.canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = pointer(view, event);
    stretching = x < axis.gutter && y > STRIP + AXIS;
  });
  strip.listen();
  gestures(view, {
    move: (dx, dy) => (stretching ? stretch(Math.exp(dy / 120)) : axis.move(dx)),
    hover,
    click: (x, y, event) => {
      const [bar] = barAt(x, y);
      if (bar === UNSEEN || s.bars.op[bar] < 0) return select([]);
      if (!(event.shiftKey || event.ctrlKey || event.metaKey)) return select([s.bars.op[bar]], s.bars.op[bar]);
      const next = new Set(s.selected);
      if (!next.delete(s.bars.op[bar])) next.add(s.bars.op[bar]);
      return select(next);
    },
    rectangle: (x0, y0, x1) => change({ range: [Math.max(timeAt(x0), 0), Math.min(timeAt(x1), span())], measuring: true }),
  });

  function neighbour(by) {
    const from = latest(); // of a group that is selected as a whole, the clicked op
    const current = s.bars.op.findIndex((op) => (from === UNSEEN ? s.selected.has(op) : op === from));
    const next = current < 0 ? 0 : current + by;
    if (next >= 0 && next < s.bars.op.length && s.bars.op[next] >= 0) select([s.bars.op[next]], s.bars.op[next]);
  }
  const keys = {
    Escape: () => { change({ range: [] }); select([]); }, s: () => change({ measuring: !model.get("measuring") }), n: () => neighbour(1), p: () => neighbour(-1), "/": () => search.focus(), c: () => toggleCritical(), z: () => toSelection(),
    i: () => change({ fold_idle: !model.get("fold_idle") }), "[": () => stretch(0.85), "]": () => stretch(1.2),
  };
  axis.listen(view, keys);

  function rebuild() {
    s.bars = readBars(model);
    s.lanes = model.get("lanes");
    s.colours = model.get("colors");
    s.waits = readWaits(model);
    s.batches = column({ b: model.get("batches") }, "b", "i4");
    s.hovered = UNSEEN;
    axis.read();
    recolour();
    arrange();
    describe();
    view.tabulate();
    view.redraw();
  }
  function recolour() {
    Object.assign(s, readShades(model, s.bars, s.colours));
    strip.changed();
    colourBy.offer(model.get("colorings").map((name) => [name, name]), model.get("color_by"));
    against.offer([["", "nothing"], ...model.get("choices")], model.get("against"));
    const compared = model.get("choices").find(([key]) => key === model.get("against"));
    const moved = new Set();
    s.bars.elsewhere.forEach((other, b) => { if (other) moved.add(s.bars.label[b]); });
    legend.replaceChildren(...legendOf(model, s.waits, compared ? compared[1] : "", moved.size));
    view.canvas.dataset.moved = String(moved.size);
    view.canvas.dataset.critical = ["ops", "transfers"].map((kind) => criticalBars(s.bars, s.lanes, s.shade, kind)).join(" ");
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
    table.replaceChildren(...statisticsTable(rows, range, marked, marked ? [zoom, clear] : [], (us) => formatTimeBeside(us, model.get("span_us"))));
  }
  function readNear() {
    s.near = new Set([...model.get("inputs"), ...model.get("outputs")]);
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
    names: () => { s.names = texts(model.get("names")); view.redraw(); },
    selected: () => { s.selected = new Set(model.get("selected")); describe(); view.redraw(); },
    window: () => { axis.read(); view.tabulate(); view.redraw(); },
    waits: rebuild,
    kinds: recolour,
    legend: recolour,
    choices: recolour,
    against: recolour,
    batches: rebuild,
    phases: recolour,
    statistics: tabulate,
    measuring: tabulate,
    range: () => { tabulate(); view.redraw(); },
    critical: () => { pressed(); view.redraw(); },
    fold_idle: () => { arrange(); view.redraw(); },
    lane_scale: () => { arrange(); view.redraw(); },
    status: describe,
    why: describe,
    inputs: readNear,
    outputs: readNear,
    dim: () => { s.dim = readDim(model); view.redraw(); },
  });
  const onMessage = (message, buffers) => {
    if (message.type !== "download") return;
    const link = element("a", { download: message.name, href: URL.createObjectURL(new Blob([buffers[0]], { type: message.mime })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  model.on("msg:custom", onMessage);
  return () => { stop(); axis.stop(); model.off("msg:custom", onMessage); view.close(); };
}

/** The first bar of each op whose name contains `text`, in any case of letters, by their starts.
 * @param {any} s @param {string} text @returns {number[]} */
function firstBarsNamed(s, text) {
  const wanted = text.toLowerCase();
  const firsts = new Map();
  s.lanes.forEach((/** @type {any} */ lane, /** @type {number} */ k) => {
    if (lane.kind !== "ops") return;
    for (let b = s.bars.pointer[k]; b < s.bars.pointer[k + 1]; b += 1) {
      const op = s.bars.op[b];
      if (op >= 0 && !firsts.has(op) && (s.names[s.bars.label[b]] ?? "").toLowerCase().includes(wanted)) firsts.set(op, b);
    }
  });
  return [...firsts.values()].sort((a, b) => s.bars.start[a] - s.bars.start[b]);
}

/** The makespan of each timeline, with the share of bubbles if there are micro-batches.
 * @param {any} s @param {Record<string, number>} makespans */
function makespansInWords(s, makespans) {
  const bubbles = (origin) => {
    const idle = s.lanes.filter((lane) => lane.kind === "ops" && lane.origin === origin).map((lane) => lane.idle_share);
    return s.batches.length && idle.length ? `, ${formatShare(idle.reduce((a, b) => a + b, 0) / idle.length)} bubbles` : "";
  };
  return Object.entries(makespans).map(([origin, value]) => `${origin} ${formatTime(value)}${bubbles(origin)}`).join("  ·  ");
}

/** The table for readers of screens: the first bars that begin or go on in `range`, in order of time, and the number of all.
 * @param {any} s @param {number[]} range @param {number} span */
function visibleRows(s, range, span) {
  const inUnit = (us) => formatTimeBeside(us, span);
  const { count, first } = barsWithin(s.bars, range, MOST_ROWS);
  const rows = first.map(([k, b]) => {
    const lane = s.lanes[k];
    const place = `${lane.label}${lane.kind === "ops" ? "" : `, ${lane.kind}`}`;
    return [s.names[s.bars.label[b]] ?? "", place, lane.origin, inUnit(s.bars.start[b]), inUnit(s.bars.end[b] - s.bars.start[b])];
  });
  return { rows, count };
}

/** What the pointer is over: `barAt` returns the bar and the lane of a point, `hover` shows the tooltip of a bar, a lane's name or
 * idle time.
 * @param {any} s @param {Model} model @param {any} view @param {TimeAxis} axis @param {(lane: number, bar: number) => number[]} extent */
function timelinePointer(s, model, view, axis, extent) {
  const inUnit = (us) => formatTimeBeside(us, model.get("span_us")); // the unit of the axis of the whole step

  function barAt(x, y) {
    const lane = s.tops.findIndex(([top, height]) => y >= top && y < top + height);
    if (lane < 0 || x < axis.gutter) return [UNSEEN, lane];
    const slack = 2 / axis.scaleX();
    const time = axis.timeAt(x);
    let best = UNSEEN;
    let nearest = Infinity;
    for (let b = firstVisible(s.bars, lane, time - slack); b < s.bars.pointer[lane + 1] && s.bars.start[b] <= time + slack; b += 1) {
      const [top, height] = extent(lane, b);
      if (y < top || y > top + height) continue;
      const away = Math.max(s.bars.start[b] - time, time - s.bars.end[b], 0);
      if (away <= slack && away < nearest) [nearest, best] = [away, b];
    }
    return [best, lane];
  }

  const nameOfLane = (lane) => (lane.folded && model.get("fold_idle") ? lane.fold_label : `${lane.label}, ${lane.origin}`);

  function laneFacts(lane) {
    const l = s.lanes[lane];
    const waited = [0, 0, 0, 0, 0, 0];
    for (let w = s.waits.pointer[lane]; w < s.waits.pointer[lane + 1]; w += 1) waited[s.waits.kind[w]] += s.waits.end[w] - s.waits.start[w];
    const time = (us) => (us > 0 ? inUnit(us) : "");
    if (l.kind === "transfers") return [["transfers", String(s.bars.pointer[lane + 1] - s.bars.pointer[lane])], ["", "above: sent, below: received"]];
    if (l.kind === "collectives") return [["collectives", inUnit(l.collectives_us)], ["exposed", `${inUnit(l.exposed_us)}, in which the device computes nothing`]];
    return [
      ["busy", inUnit(l.busy_us)], ["idle", `${inUnit(l.idle_us)} (${formatShare(l.idle_share)} of the step)`],
      ["for transfers", time(waited[TRANSFER_WAIT])], ["in queues", time(waited[QUEUE_WAIT])], ["for other devices", time(waited[2])], ["for collectives", time(waited[COLLECTIVE_WAIT])],
      ["by order", time(waited[3])], ["nothing left", time(waited[NOTHING_LEFT])],
      ["bubbles", `${l.bubbles}, together ${inUnit(l.bubble_us)}`], ["longest", l.bubbles ? inUnit(l.longest_us) : ""],
    ];
  }

  function hover(x, y) {
    const [bar, lane] = barAt(x, y);
    if (bar !== UNSEEN) {
      const l = s.lanes[lane];
      const moved = l.kind === "transfers";
      showTooltip(view, x, y, s.names[s.bars.label[bar]] ?? "?", [
        [moved ? "transfer" : "device", moved ? describePeer(l, bar) : l.label],
        ["origin", l.origin], ["start", inUnit(s.bars.start[bar])],
        ["takes", inUnit(s.bars.end[bar] - s.bars.start[bar])], ["size", moved ? formatBytes(s.bars.bytes[bar]) : ""],
        ["micro-batch", (s.batches[s.bars.label[bar]] ?? -1) >= 0 ? String(s.batches[s.bars.label[bar]]) : ""],
        [model.get("color_by"), s.classes ? model.get("legend")[s.shade[bar]]?.label : ""],
        ["phase", moved ? "" : phaseOf(model, s.bars.label[bar])],
        ["elsewhere", s.bars.elsewhere[bar] ? `on ${model.get("devices")[s.bars.elsewhere[bar] - 1] ?? "another device"} in the other placement` : ""],
      ]);
    } else if (lane >= 0 && x < axis.gutter) showTooltip(view, x, y, nameOfLane(s.lanes[lane]), laneFacts(lane));
    else if (lane >= 0 && waitAt(lane, x) !== UNSEEN) showWait(waitAt(lane, x), x, y);
    else showTooltip(view, 0, 0, "", []);
    view.canvas.style.cursor = x < axis.gutter && y > STRIP + AXIS ? "ns-resize" : "";
    if (bar !== s.hovered) {
      s.hovered = bar;
      view.redraw();
    }
  }

  function waitAt(lane, x) {
    const w = firstWait(s.waits, lane, axis.timeAt(x));
    return w < s.waits.pointer[lane + 1] && s.waits.start[w] <= axis.timeAt(x) ? w : UNSEEN;
  }

  function showWait(w, x, y) {
    const why = reason(s.waits.kind[w], s.names[s.waits.source[w]] ?? "", s.names[s.waits.op[w]] ?? "");
    showTooltip(view, x, y, `idle ${inUnit(s.waits.end[w] - s.waits.start[w])}`, [
      ["because", why], ["from", inUnit(s.waits.start[w])], ["to", inUnit(s.waits.end[w])],
    ]);
  }

  function describePeer(lane, bar) {
    const devices = model.get("devices");
    const peer = s.bars.peer[bar];
    return peer >= 0 ? `${lane.label} to ${devices[peer]}` : `${devices[-peer - 1]} to ${lane.label}`;
  }

  return { barAt, hover };
}

/** When something starts and ends; how long it takes where both are the same in words.
 * @param {number} start @param {number} end @param {number} span of the step, whose unit they have */
function intervalInWords(start, end, span) {
  const [from, to, takes] = [start, end, end - start].map((us) => formatTimeBeside(us, span));
  return from === to ? `at ${from}, takes ${takes}` : `${from} to ${to}`;
}

/** How many ops are selected, when the explained op runs, and why then.
 * @param {any} s @param {Model} model @param {number} op */
function selectionInWords(s, model, op) {
  const rows = [];
  for (let lane = 0; op !== UNSEEN && lane < s.lanes.length && rows.length < 4; lane += 1) {
    if (s.lanes[lane].kind === "transfers") continue;
    for (let b = s.bars.pointer[lane]; b < s.bars.pointer[lane + 1] && rows.length < 4; b += 1) {
      if (s.bars.op[b] === op) rows.push(`${s.names[s.bars.label[b]]} on ${s.lanes[lane].label}, ${s.lanes[lane].origin}: ${intervalInWords(s.bars.start[b], s.bars.end[b], model.get("span_us"))}`);
    }
  }
  const why = model.get("why");
  const count = s.selected.size === 1 ? [] : [`${opsInWords(s.selected.size)} selected`];
  return [...count, ...rows, ...(why ? [`why then: ${why}`] : [])].join("  ·  ");
}

export default { render };
