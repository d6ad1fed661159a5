"use strict";
// One setting at a time: whatever belongs to an earlier one is dimmed at once and never shown again.
const START = {noise: 1.1, batch_size: 256, dataset_size: 60000, epochs: 60, delta: 1e-5, budget: 3, sampling: "poisson", adjacency: "add-or-remove"};
const $ = (id) => document.getElementById(id);
const state = {...START, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1)))};
let turn = 0, abort = new AbortController(), pinned = null, shown = {}, quick = 0, slow = 0;

function told(value, digits) {
  const number = Number(value);
  return digits < 0 ? number.toExponential(-digits - 1).replace(/\.?0+e/, "e") : String(Number(number.toFixed(digits)));
}

for (const field of document.querySelectorAll(".field[data-name]")) {
  const {name, min, max} = field.dataset, places = Number(field.dataset.digits);
  const low = Math.log(min), high = Math.log(max);
  const box = document.createElement("div"), range = document.createElement("input"), text = document.createElement("input");
  box.className = "both";
  Object.assign(range, {type: "range", min: 0, max: 1000, step: 1});
  range.setAttribute("aria-label", field.querySelector("label").textContent + ", slider");
  Object.assign(text, {type: "text", id: name, inputMode: "decimal", autocomplete: "off"});
  const place = () => { range.value = 1000 * (Math.log(state[name]) - low) / (high - low); range.setAttribute("aria-valuetext", state[name]); };
  range.addEventListener("input", () => {
    state[name] = text.value = told(Math.exp(low + (high - low) * range.value / 1000), places);
    range.setAttribute("aria-valuetext", state[name]);
    moved();
  });
  text.addEventListener("input", () => { state[name] = text.value.trim(); place(); moved(); });
  text.value = told(state[name], places);
  place();
  box.append(range, text);
  field.append(box);
}
for (const name of ["sampling", "adjacency"]) {
  $(name).value = state[name];
  $(name).addEventListener("change", () => { state[name] = $(name).value; moved(); });
}

// The first movement is asked at once; those that follow before its answer wait for a pause.
function moved() {
  const pause = $("results").getAttribute("aria-busy") === "false" ? 0 : 25;
  turn += 1;
  abort.abort();
  abort = new AbortController();
  $("results").setAttribute("aria-busy", "true");
  document.querySelector(".slow").classList.add("waiting");
  taking(false);
  clearTimeout(quick);
  clearTimeout(slow);
  quick = setTimeout(() => answer(turn), pause);
}

// Code, link and certificate belong to a setting too.
function taking(ready) {
  document.body.classList.toggle("moving", !ready);
  for (const name of ["pin", "link", "copy", "certificate"]) $(name).disabled = !ready;
  $("done").textContent = "";
}

async function ask(what, mine, read) {
  const {budget, ...setting} = state;
  const words = new URLSearchParams(what === "noise" ? {...setting, budget} : setting);
  const reply = await fetch(`answer/${what}?${words}`, {signal: abort.signal});
  const found = read ? await read(reply) : await reply.json();
  return mine === turn ? found : null;
}

async function answer(mine) {
  const begun = performance.now();
  let found;
  try { found = await ask("epsilon", mine); } catch (gone) { if (gone.name !== "AbortError") refuse("The server does not answer: is it still running?"); return; }
  if (found === null) return;
  refuse("");
  $("results").setAttribute("aria-busy", "false");
  if (found.refused) return withdraw(found.refused);
  const {lower, upper} = found.epsilon;
  $("epsilon").textContent = "\u2264 " + digits(upper, 1);
  $("said").textContent = `By ${found.analysis}${found.kind === "exact" ? "" : " (a bound)"}: ${found.steps.toLocaleString("en")} steps at delta ${found.delta}.` +
    (found.kind === "exact" || lower > 0 ? ` The truth is at least ${digits(lower, -1)}.` : "") + (found.remarks.length ? " " + found.remarks.join(" ") : "");
  $("python").textContent = found.python;
  history.replaceState(null, "", "#" + new URLSearchParams(state));
  document.body.dataset.milliseconds = Math.round(performance.now() - begun);
  shown = {epsilon: digits(upper, 1), setting: {...state}};
  taking(true);
  slow = setTimeout(() => more(mine), 200);
}

async function more(mine) {
  try {
    const second = await ask("second", mine);
    if (!second) return;
    if (second.refused) return withdraw(second.refused);
    $("second").textContent = second.words;
    const [curve, along, noise, all] = [await ask("curve", mine), await ask("epochs", mine), await ask("noise", mine), await ask("analyses", mine)];
    if (!curve || !along || !noise || !all) return;
    const no = [curve, along, all].find((one) => one.refused);
    if (no) return refuse(no.refused);
    people(curve);
    plot($("curve"), curve.rates, [[curve.hits, "mine"], ...(pinned ? [[pinned.curve.hits, "before"]] : []), [curve.rates, "guess"]]);
    shown.curve = curve;
    const rows = along.rows.filter((row) => row.epsilon && isFinite(row.epsilon.upper));
    lines($("along"), rows.map((row) => row.steps), rows.map((row) => row.epsilon.upper));
    $("noise_for").textContent = noise.refused ? noise.refused : `For epsilon ${noise.budget} the noise must be at least ${digits(noise.noise, 1)}.`;
    $("analyses").replaceChildren(...all.analyses.map((row) => line([row.name, row.epsilon ? told_of(row.epsilon) : "-", row.kind])));
    document.querySelector(".slow").classList.remove("waiting");
  } catch (gone) { if (gone.name !== "AbortError") refuse(String(gone)); }
}

// A number that is promised is rounded away from the truth: up (1) or down (-1).
function digits(x, side) {
  if (x === "infinity") return "infinity";
  const unit = x ? 10 ** (Math.floor(Math.log10(Math.abs(x))) - 4) : 1;
  let near = Number(Number(x).toPrecision(5));
  if (side * (x - near) > 0) near = Number((near + side * unit).toPrecision(5));
  return near && (Math.abs(near) >= 1e5 || Math.abs(near) < 1e-3) ? near.toExponential(4) : String(near);
}
function told_of(epsilon) { return "upper" in epsilon ? "\u2264 " + digits(epsilon.upper, 1) : "about " + digits(epsilon.estimate, 0); }
// No number is left where one was refused, at once or by the second method.
function withdraw(words) {
  refuse(words);
  for (const name of ["said", "second", "python"]) $(name).textContent = "";
  $("epsilon").textContent = "-";
  taking(false);
}
function refuse(words) { $("refused").textContent = words; }
function line(cells) { const row = document.createElement("tr"); row.append(...cells.map((words) => Object.assign(document.createElement("td"), {textContent: words}))); return row; }
function draw(kind, more) { const made = document.createElementNS("http://www.w3.org/2000/svg", kind); for (const [key, value] of Object.entries(more)) made.setAttribute(key, value); return made; }
function words(x, y, text, anchor) { const made = draw("text", {x, y, "text-anchor": anchor || "start"}); made.textContent = text; return made; }

function people(curve) {
  $("people").textContent = `Of 1,000 people in the data, an attacker who is allowed 10 false alarms among 1,000 others finds at most ${curve.found_of_1000}. Guessing would find 10.`;
  const kind = (i) => i < 10 ? "guessed" : i < curve.found_of_1000 ? "found" : "hidden";
  $("dots").replaceChildren(...Array.from({length: 1000}, (_, i) => draw("circle", {cx: 5 + 10 * (i % 50), cy: 3 + 5 * Math.floor(i / 50), r: 2, class: kind(i)})));
}

function plot(svg, rates, curves) {
  const x = (rate) => 40 + 300 * (Math.log10(rate) + 4) / 4, y = (hit) => 210 - 195 * hit;
  const made = [draw("path", {d: "M40 15V210H340", class: "axis", fill: "none"})];
  for (const [power, name] of [[-4, "0.01 %"], [-2, "1 %"], [0, "100 %"]]) made.push(words(x(10 ** power), 228, name, power ? "middle" : "end"));
  for (const hit of [0, 0.5, 1]) made.push(words(36, y(hit) + 4, `${100 * hit} %`, "end"));
  for (const [hits, kind] of curves) made.push(draw("path", {class: kind, d: "M" + rates.map((rate, i) => `${x(rate).toFixed(1)} ${y(hits[i]).toFixed(1)}`).join("L")}));
  svg.replaceChildren(...made);
}

function lines(svg, steps, values) {
  if (!steps.length) return svg.replaceChildren();
  const last = steps[steps.length - 1], top = Math.max(...values) || 1;
  const x = (step) => 45 + 295 * step / last, y = (value) => 210 - 190 * value / top;
  svg.replaceChildren(draw("path", {d: "M45 15V210H340", class: "axis", fill: "none"}), words(340, 228, last.toLocaleString("en") + " steps", "end"),
    words(41, 24, digits(top, 1), "end"), words(41, 214, "0", "end"),
    draw("path", {class: "mine", d: "M" + steps.map((step, i) => `${x(step).toFixed(1)} ${y(values[i]).toFixed(1)}`).join("L")}));
}

async function copied(text) { await navigator.clipboard.writeText(text); $("done").textContent = "Copied."; }
$("link").addEventListener("click", () => copied(location.href));
$("copy").addEventListener("click", () => copied($("python").textContent));
$("pin").addEventListener("click", () => {
  if (!shown.curve) return;
  pinned = shown;
  $("pinned").textContent = `Pinned: epsilon at most ${pinned.epsilon}, with ` + Object.entries(pinned.setting).filter(([name]) => name !== "budget").map(([name, value]) => `${name.replace("_", " ")} ${value}`).join(", ") + ".";
  moved();
});
$("certificate").addEventListener("click", async () => {
  $("done").textContent = "Writing it ...";
  let text;  // as it was written: 4.0 would come back as 4, and its hash would not hold
  try { text = await ask("certificate", turn, (reply) => reply.text()); } catch (gone) { return; }
  if (!text) return;
  const {refused} = JSON.parse(text);
  if (refused) { $("done").textContent = refused; return; }
  const blob = new Blob([text], {type: "application/json"});
  const save = Object.assign(document.createElement("a"), {href: URL.createObjectURL(blob), download: "certificate.json"});
  save.click();
  $("done").textContent = "Saved. Anybody can check it: tightrope verify certificate.json";
});
moved();
