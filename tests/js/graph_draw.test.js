import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "./load.js";

const { drawBox, FAINT_BOX } = load(["common.js", "graph_draw.js"], ["drawBox", "FAINT_BOX"]);
const theme = { text: "text", faint: "faint", background: "background", danger: "danger", accent: "accent", crossing: "crossing", font: "sans" };
const scene = { id: [0, 1], x: [50, 50], y: [20, 60], width: [90, 90], height: [30, 30], labels: ["chosen", "other"], notes: ["", ""] };
const paint = { fits: true, shares: new Map(), device: [0, 0], notes: ["1 us", "2 us"], critical: [0, 0] };

/** The texts of both boxes with the colour and the opacity in which they are drawn. */
function labels(heat, marks, dim) {
  const drawn = [];
  const context = new Proxy({ globalAlpha: 1, measureText: (text) => ({ width: 6 * text.length }), fillText(text) { drawn.push([text, this.fillStyle, this.globalAlpha]); } }, {
    get: (target, name) => (name in target ? target[name] : () => {}),
    set: (target, name, value) => { target[name] = value; return true; },
  });
  for (const i of [0, 1]) drawBox(context, { scene, paint, heat, marks, dim, colours: ["blue"], theme, t: { x: 0, y: 0, k: 1 }, critical: false, hovered: -1 }, i);
  return drawn;
}

test("boxes beside the chosen one keep labels that can be read", () => {
  const expected = [["chosen", "text", 1], ["1 us", "faint", 1], ["other", "faint", 1], ["2 us", "faint", 1]];
  const none = { any: false, chosen: [0, 0], hits: [0, 0] };
  assert.deepEqual(labels({ fits: false }, { any: true, chosen: [1, 0], hits: [0, 0] }, []), expected);
  assert.deepEqual(labels({ fits: false }, none, [0, 1]), expected);
  const plain = labels({ fits: false }, none, []);
  assert.deepEqual(plain.map(([, colour]) => colour), ["text", "faint", "text", "faint"]);
});

/** The texts of a box of 90 x 30 and their font sizes, at a scale. */
function fontsAt(k, width = 90) {
  const drawn = [];
  const context = new Proxy({ measureText: (text) => ({ width: 6 * text.length }), fillText(text) { drawn.push([text, parseFloat(this.font)]); } }, {
    get: (target, name) => (name in target ? target[name] : () => {}),
    set: (target, name, value) => { target[name] = value; return true; },
  });
  const marks = { any: false, chosen: [0, 0], hits: [0, 0] };
  drawBox(context, { scene: { ...scene, width: [width, width] }, paint, heat: { fits: false }, marks, dim: [], colours: ["blue"], theme, t: { x: 0, y: 0, k }, critical: false, hovered: -1 }, 0);
  return drawn;
}

test("text smaller than 9 pixels is not drawn", () => {
  assert.deepEqual(fontsAt(1), [["chosen", 11], ["1 us", 9]]);
  for (const k of [0.9, 0.6, 0.4, 0.35]) assert.ok(fontsAt(k).every(([, size]) => size >= 9), String(k));
  assert.deepEqual(fontsAt(0.9).map(([text]) => text), ["chosen"]); // the note would have 8.1
  assert.deepEqual(fontsAt(0.6, 50).map(([text]) => text), ["chos…"]); // a box of 30 pixels has 26 for 5 letters of 9 pixels
  assert.deepEqual(fontsAt(0.3), []); // a box of 9 pixels
});

test("the edges of boxes beside the chosen one are seen on light and dark pages", () => {
  const light = (rgb) => rgb.map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4)).reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const blue = [0, 114, 178]; // of the first device
  for (const page of [[255, 255, 255], [17, 17, 17]]) {
    const edge = light(blue.map((c, k) => FAINT_BOX * c + (1 - FAINT_BOX) * page[k]));
    const [high, low] = [Math.max(edge, light(page)), Math.min(edge, light(page))];
    assert.ok((high + 0.05) / (low + 0.05) > 2, `${page}`);
  }
});
