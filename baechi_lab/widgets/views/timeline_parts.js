// Parts of the timeline view besides its bars: idle time, arrows of the explained op, legend and statistics. Python joins
// this text behind timeline_strip.js.

/** Where a lane lies: its upper edge and its height. @typedef {number[][]} Tops */

/** Idle time as a thin line in its lane: transfers in the colour of what crosses devices (dashed while in a queue), other
 * devices' ops and planned orders in grey, nothing where nothing is left.
 * @param {CanvasRenderingContext2D} context @param {Theme} theme @param {TimeAxis} axis @param {Waits} waits @param {Tops} tops */
function drawWaits(context, theme, axis, waits, tops) {
  const scale = axis.scaleX();
  for (let lane = 0; lane < tops.length; lane += 1) {
    const [top, height] = tops[lane];
    const y = top + height / 2;
    const last = waits.pointer[lane + 1];
    for (let w = firstWait(waits, lane, axis.range[0]); w < last && waits.start[w] < axis.range[1]; w += 1) {
      const kind = waits.kind[w];
      const wide = (waits.end[w] - waits.start[w]) * scale;
      if (kind === NOTHING_LEFT || wide < 2) continue;
      const from = Math.max(axis.xOf(waits.start[w]), axis.gutter);
      const to = Math.min(axis.xOf(waits.end[w]), axis.gutter + (axis.range[1] - axis.range[0]) * scale);
      const moved = kind === TRANSFER_WAIT || kind === QUEUE_WAIT || kind === COLLECTIVE_WAIT;
      context.fillStyle = moved ? theme.crossing : theme.faint;
      context.globalAlpha = moved ? 0.75 : 0.4;
      if (kind !== QUEUE_WAIT) context.fillRect(from, y - 1, to - from, 2);
      else for (let x = from; x < to; x += 6) context.fillRect(x, y - 1, Math.min(3, to - x), 2);
    }
  }
  context.globalAlpha = 1;
}

/** The range that was marked. @param {CanvasRenderingContext2D} context @param {Theme} theme @param {TimeAxis} axis
 * @param {number[]} range @param {number} width @param {number} height */
function drawRange(context, theme, axis, range, width, height) {
  if (range.length !== 2) return;
  const from = Math.max(axis.xOf(range[0]), axis.gutter);
  const to = Math.min(axis.xOf(range[1]), width);
  if (to <= from) return;
  context.fillStyle = theme.text;
  context.globalAlpha = 0.09;
  context.fillRect(from, STRIP, to - from, height - STRIP);
  context.globalAlpha = 0.7;
  context.fillRect(from, STRIP, 1, height - STRIP);
  context.fillRect(to - 1, STRIP, 1, height - STRIP);
  context.globalAlpha = 1;
}

/** An arrow between two places `[x of the start, x of the end, y]`: from the end of one to the start of the other.
 * @param {CanvasRenderingContext2D} context @param {number[]} from @param {number[]} to */
function drawArrow(context, [, x0, y0], [x1, , y1]) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0 + 14, y0, x1 - 14, y1, x1 - 1, y1);
  context.moveTo(x1 - 6, y1 - 3);
  context.lineTo(x1 - 1, y1);
  context.lineTo(x1 - 6, y1 + 3);
  context.stroke();
}

/** Names of the colours in use, with the time of each class; idle time and moved ops are explained where they occur.
 * @param {Model} model @param {Waits} waits @param {string} against what the first timeline is held against @param {number} moved ops elsewhere there
 * @returns {HTMLElement[]} */
function legendOf(model, waits, against, moved) {
  const items = model.get("legend").map((/** @type {{label: string, color: string, time: number, hatched?: boolean}} */ one) => element(
    "span", { class: "bl-key", title: `${one.label}: ${formatTime(one.time)} in all` },
    element("span", { class: one.hatched ? "bl-swatch bl-hatched" : "bl-swatch", style: `background-color:${one.color}` }), one.label));
  items.push(...waitKeys(waits.kind).map(([mark, text, title]) => lineKey(mark, text, title)));
  if (against) {
    items.push(element("span", { class: "bl-key bl-moved", title: "the bar's upper edge has the colour of the other device" },
      moved ? `▔ ${opsInWords(moved)} on another device than in ${against}` : `every op where it is in ${against}, up to the names of equal devices`));
  }
  return items;
}

const STATISTICS = [
  ["", "the device"], ["busy", "time in which it computes, and its share of the range"],
  ["idle", "time in which it does not"],
  ["for a transfer", "idle while the tensor needed next is under way"],
  ["in a queue", "idle while the tensor needed next waits behind others in the queue of a link"],
  ["for another device", "idle while the op whose tensor is needed next has not ended elsewhere"],
  ["for a collective", "idle while a collective has not ended: exposed communication"],
  ["order", "idle though nothing was missing: a planned order, or what a real runtime does besides"],
  ["nothing left", "idle after its last op of the step"], ["ops", "ops that run at least partly in the range"],
  ["most time in", "the op type with the most time in the range"],
];

/** One row of the statistics as texts; shares are of the range as far as the step reaches.
 * @param {any} row @param {(us: number) => string} inUnit @returns {string[]} */
function statisticsTexts(row, inUnit) {
  const span = row.busy_us + row.idle_us;
  const share = (/** @type {number} */ part) => (span > 0 ? ` (${formatShare(part / span)})` : "");
  const time = (/** @type {number} */ value) => (value > 0 ? inUnit(value) : "");
  const w = row.waited;
  return [
    row.device, `${inUnit(row.busy_us)}${share(row.busy_us)}`, `${inUnit(row.idle_us)}${share(row.idle_us)}`,
    time(w.transfer), time(w.queue), time(w.op), time(w.collective), time(w.order), time(w.nothing), row.ops.toLocaleString("en"),
    row.most ? `${row.most}${row.busy_us > 0 ? ` (${formatShare(row.most_us / row.busy_us)})` : ""}` : "",
  ];
}

/** The table of a range, a part per timeline, without the causes that no device waited for. @param {any[]} rows @param {number[]} range @param {boolean} marked
 * @param {HTMLElement[]} buttons @param {(us: number) => string} inUnit */
function statisticsTable(rows, range, marked, buttons, inUnit) {
  const [first, last, length] = [range[0], range[1], range[1] - range[0]].map(inUnit);
  const said = `${marked ? "Marked" : "Shown"}: ${first} to ${last}, ${length}`;
  const texts = rows.map((row) => statisticsTexts(row, inUnit));
  const used = STATISTICS.map((_, column) => texts.some((row) => row[column]));
  const head = element("tr", {}, ...STATISTICS.filter((_, k) => used[k]).map(([name, title]) => element("th", { title }, name)));
  const body = rows.flatMap((row, k) => {
    const first = k === 0 || rows[k - 1].title !== row.title;
    const several = rows.some((other) => other.title !== row.title);
    const heading = element("tr", {}, element("th", { colspan: String(used.filter(Boolean).length) }, row.title));
    const cells = texts[k].filter((_, column) => used[column]).map((text) => element("td", {}, text));
    return [...(several && first ? [heading] : []), element("tr", {}, ...cells)];
  });
  return [element("div", { class: "bl-statistics-head" }, element("b", {}, said), ...buttons), element("table", {}, head, ...body)];
}
