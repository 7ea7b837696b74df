// The views' files are plain text that Python joins, without imports and exports; here they are joined the same way.

import { readFileSync } from "node:fs";

const FOLDER = new URL("../../baechi_lab/widgets/views/", import.meta.url);

/** The named functions of the joined files, without what a view hands to the page. */
export function load(files, names) {
  const text = files.map((name) => readFileSync(new URL(name, FOLDER), "utf-8")).join("\n");
  return new Function(`${text.replace(/^export default .*$/gm, "")}\nreturn { ${names.join(", ")} };`)();
}

/** A view's traits: columns of numbers as the bytes that Python sends, after one byte that makes them unaligned. */
export function model(traits) {
  return { get: (name) => traits[name] };
}

const KINDS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u1: Uint8Array };

export function bytes(kind, values) {
  const made = KINDS[kind].from(values);
  const shifted = new Uint8Array(made.byteLength + 1);
  shifted.set(new Uint8Array(made.buffer), 1);
  return new DataView(shifted.buffer, 1);
}

export function lines(...texts) {
  return new DataView(new TextEncoder().encode(texts.join("\n")).buffer);
}
