// A run in the browser: its graph with counts, its curves, and a slider over its past. Text of the run is always set
// as text content, so that no name in it can become markup.

const LEVELS = 10; // of heat
const COLOURS = ["#2f83c5", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7f7f7f"]; // after Okabe and Ito (2008)
const DASHES = [[], [6, 4], [2, 3]], BORDERS = ["solid", "dashed", "dotted"];
const page = document.getElementById("page");
const query = new URLSearchParams(location.search);

const state = { tick: null, run: 0, heat: "runs", fold: false, difference: true, zoom: null, x: "step", log: false, chosen: null, sort: ["", 1], filter: "", picked: new Set() };
let content = null;
let plots = [];
let drawn = ""; // what the page was built from; while it stays, the page is refreshed without a rebuild

// ---- elements

function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) created.addEventListener(name.slice(2), value);
    else if (value === true) created.setAttribute(name, "");
    else if (value !== false && value !== null) created.setAttribute(name, value);
  }
  created.append(...children.flat().filter((child) => child !== null && child !== ""));
  return created;
}

function table(head, rows) {
  const isNumber = (cell) => typeof cell === "number" || (head.length && /^(nan|-?inf|–)$/.test(cell));
  const cells = (tag, row) => row.map((cell, column) => element(tag, {
    class: isNumber(tag === "th" ? rows[0]?.[column] : cell) ? "number" : "",
  }, typeof cell === "number" ? number(cell) : cell));
  return element("table", {}, head.length ? element("tr", {}, cells("th", head)) : "",
    rows.map((row) => element("tr", {}, cells("td", row))));
}

function toggle(text, isOn, act, title = "") {
  return element("button", { "aria-pressed": String(isOn), title, onclick: act }, text);
}

function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
}

function tickLabel(value) { // fits the axis; a logarithmic axis leaves out some
  if (value === null) return "";
  return value && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3) ? Number(value.toPrecision(4)).toExponential().replace("+", "") : number(value);
}

function short(value) {
  if (value < 10000) return String(value);
  return value < 1e6 ? `${(value / 1000).toPrecision(3)}k` : `${(value / 1e6).toPrecision(3)}M`;
}

const share = (part, whole) => (whole > 0 ? `${(100 * part / whole).toPrecision(3)}\u00a0%` : "–");
const clock = (seconds) => new Date(seconds * 1000).toLocaleString();

// ---- the moment that is shown

const run = () => content.runs[state.run];

function tick() {
  const last = run().ticks.row.length - 1;
  return state.tick === null ? last : Math.min(state.tick, last);
}

function moveTo(position) {
  const last = run().ticks.row.length - 1;
  state.tick = position >= last ? null : Math.max(0, position);
  refresh();
}

function nearestTick(x) {
  const places = run().ticks[state.x];
  let best = 0;
  places.forEach((place, index) => { if (Math.abs(place - x) < Math.abs(places[best] - x)) best = index; });
  return best;
}

function totals(name) { // name of a column -> key -> total at this moment
  const { ticks } = run();
  const keys = name === "taken" ? ticks.edges : ticks.nodes;
  const values = ticks[name][tick()] || [];
  return new Map(keys.map((key, index) => [key, values[index]]).filter(([, value]) => value !== undefined));
}

// ---- the picture of a graph

function pictureOf(graph) {
  if (content.difference && state.difference) return content.difference;
  return graph && (graph.pictures.find((picture) => picture.name === (state.fold ? "folded" : "unfolded")) || graph.pictures[0]);
}

function svgOf(text) {
  const { documentElement } = new DOMParser().parseFromString(text, "image/svg+xml");
  for (const each of documentElement.querySelectorAll("script, foreignObject")) each.remove();
  for (const each of documentElement.querySelectorAll("*")) {
    for (const { name } of [...each.attributes]) if (/^on|href$/i.test(name)) each.removeAttribute(name);
  }
  return document.importNode(documentElement, true);
}

function prepare(box, picture) { // links its elements to nodes and edges, to be chosen by a click or Enter
  for (const group of box.querySelectorAll(".node, .cluster")) {
    const path = picture.keys[group.querySelector("title").textContent.replace(/^cluster_/, "")];
    if (path !== undefined) selectable(group, { node: path }, path);
  }
  for (const group of box.querySelectorAll(".edge")) {
    const key = picture.arrows[Number(group.id.slice("edge".length)) - 1];
    if (!key) continue;
    selectable(group, { edge: key }, key);
    const path = group.querySelector("path");
    const wide = path.cloneNode();
    wide.setAttribute("class", "wide");
    path.after(wide);
  }
}

function selectable(group, selection, label) {
  group.dataset.what = JSON.stringify(selection);
  group.querySelector("title").textContent = label; // which a browser shows at the mouse
  for (const [name, value] of Object.entries({ tabindex: "0", role: "button", "aria-label": label })) group.setAttribute(name, value);
  const choose = (event) => { event.stopPropagation(); state.chosen = selection; refresh(); };
  group.addEventListener("click", choose);
  group.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(event); } });
}

function zoom(box, factor) { // by buttons, keys, or Ctrl and the wheel; a factor of 0 fits the whole picture
  const svg = box.querySelector("svg");
  if (!svg) return;
  const [width, height] = [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height].map((points) => points * 4 / 3);
  const [x, y] = [(box.scrollLeft + box.clientWidth / 2) / svg.clientWidth, (box.scrollTop + box.clientHeight / 2) / svg.clientHeight];
  if (factor === 0) state.zoom = null;
  else if (factor) state.zoom = Math.min(4, Math.max(0.05, factor * svg.clientWidth / width));
  const whole = Math.min(1, (box.offsetWidth - 4) / width, (parseFloat(getComputedStyle(box).maxHeight) - 4) / height);
  svg.style.width = `${width * (state.zoom ?? whole)}px`;
  svg.style.height = "auto";
  if (factor) box.scrollTo(x * svg.clientWidth - box.clientWidth / 2, y * svg.clientHeight - box.clientHeight / 2);
}

function movable(box) {
  let from = null, isMoved = false;
  box.addEventListener("pointerdown", ({ clientX, clientY }) => {
    from = { x: clientX + box.scrollLeft, y: clientY + box.scrollTop, clientX, clientY };
    isMoved = false;
  });
  box.addEventListener("pointermove", ({ buttons, clientX, clientY }) => {
    if (!from || !buttons) return;
    isMoved ||= Math.hypot(clientX - from.clientX, clientY - from.clientY) > 4;
    box.scrollTo(from.x - clientX, from.y - clientY);
  });
  box.addEventListener("click", (event) => { if (isMoved) event.stopPropagation(); }, true);
  box.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(box, event.deltaY < 0 ? 1.1 : 1 / 1.1);
  }, { passive: false });
}

function paint(box) { // counts, heat, the current node, and a failed one
  const runs = totals("runs"), taken = totals("taken"), seconds = totals("seconds");
  const heat = state.heat === "seconds" ? seconds : runs;
  const most = Math.max(1e-9, ...[...heat].filter(([key]) => !isBody(key)).map(([, value]) => value));
  const mostTaken = Math.max(1, ...taken.values());
  const { status } = run();
  for (const group of box.querySelectorAll("[data-what]")) {
    const { node, edge } = JSON.parse(group.dataset.what);
    group.classList.toggle("chosen", group.dataset.what === JSON.stringify(state.chosen));
    if (node !== undefined) {
      for (let level = 0; level <= LEVELS; level += 1) group.classList.remove(`heat${level}`);
      const value = heat.get(node);
      if (state.heat !== "none" && value !== undefined && !group.classList.contains("cluster")) {
        const part = state.heat === "seconds" ? value / most : Math.log1p(value) / Math.log1p(most);
        group.classList.add(`heat${Math.round(LEVELS * part)}`);
      }
      const isFolded = status.position.startsWith(`${node}/`) && !group.classList.contains("cluster");
      const isNow = state.tick === null && (status.position === node || isFolded);
      group.classList.toggle("current", isNow && !["finished", "failed", ""].includes(status.state));
      group.classList.toggle("failed", isNow && status.state === "failed");
      if (runs.has(node)) count(group, runs.get(node) === 1 ? "1 run" : `${short(runs.get(node))} runs`);
    } else if (taken.has(edge)) {
      const path = group.querySelector("path:not(.wide)");
      path.setAttribute("stroke-width", String(taken.get(edge) ? 1 + 1.6 * Math.log1p(taken.get(edge)) / Math.log1p(mostTaken) : 0.6));
      path.setAttribute("opacity", taken.get(edge) ? "1" : "0.45");
      count(group, `${short(taken.get(edge))}×`);
    }
  }
}

const isBody = (path) => Object.keys(run().graph.nodes).some((other) => other.startsWith(`${path}/`));

function count(group, text) { // on its last line of text, for which the picture has room
  const line = [...group.querySelectorAll("text")].at(-1);
  if (!line.classList.contains("count")) {
    const { x, width } = line.getBBox();
    for (const [name, value] of Object.entries({ x: x + width / 2, class: "count", "text-anchor": "middle" })) line.setAttribute(name, value);
  }
  line.textContent = text;
}

// ---- what was clicked

function detail() {
  const { graph } = run();
  if (content.difference && state.difference) return element("pre", {}, content.difference.text);
  if (!graph || !state.chosen) return element("p", { class: "faint" }, "Click a node or an edge of the graph. Drag to move it, Ctrl and the wheel to zoom. Keys: ← → move the slider, h heat, f fold bodies, + - 0 zoom.");
  return state.chosen.node !== undefined ? nodeDetail(graph, state.chosen.node) : edgeDetail(graph, state.chosen.edge);
}

function nodeDetail(graph, path) {
  const node = graph.nodes[path];
  if (!node) return element("p", { class: "faint" }, `${path} is not in this graph.`);
  const runs = totals("runs"), seconds = totals("seconds");
  const whole = [...seconds].filter(([key]) => !isBody(key)).reduce((sum, [, value]) => sum + value, 0);
  const rows = [["kind", node.kind]];
  if (runs.has(path)) rows.push(["runs", number(runs.get(path))]);
  if (seconds.get(path)) rows.push(["time on the host", `${number(seconds.get(path))} s, ${share(seconds.get(path), whole)} (estimated)`]);
  for (const setting of node.settings) rows.push(["set", element("code", {}, setting)]);
  return element("div", {}, element("h2", {}, path), node.about ? element("p", {}, node.about) : "", table([], rows));
}

function edgeDetail(graph, key) {
  const edge = graph.edges[key];
  if (!edge) return element("p", { class: "faint" }, `${key} is not in this graph.`);
  const taken = totals("taken");
  const all = Object.entries(graph.edges).filter(([, other]) => other.source === edge.source);
  const whole = all.reduce((sum, [other]) => sum + (taken.get(other) || 0), 0);
  const rows = all.map(([other, { order, target, guard, expression }]) => [
    `${other === key ? "▸\u00a0" : ""}${order}`,
    target,
    guard ? element("span", {}, guard, " ", element("code", {}, expression)) : "always",
    taken.has(other) ? number(taken.get(other)) : "–",
    taken.has(other) ? share(taken.get(other), whole) : "–",
  ]);
  return element("div", {}, element("h2", {}, `${edge.source} → ${edge.target}`),
    element("p", { class: "faint" }, "The edges of a node are tried in this order; the first whose guard holds is taken."),
    table(["", "to", "guard", "taken", "share"], rows));
}

// ---- curves

function groups() { // name of a metric -> its curves, of all runs
  const curvesOf = new Map();
  content.runs.forEach((run, index) => run.curves.forEach((curve) => {
    const group = curve.name.startsWith("lr/") ? "lr" : curve.name.split("/").pop();
    if (!curvesOf.has(group)) curvesOf.set(group, []);
    curvesOf.get(group).push({ ...curve, run: index });
  }));
  const order = { loss: 0, lr: 2 };
  return [...curvesOf].sort(([a], [b]) => (order[a] ?? 1) - (order[b] ?? 1));
}

function dataOf(curves) { // null is a gap; undefined, no value at this x, is not
  return uPlot.join(curves.map((curve) => {
    const points = new Map(curve[state.x].map((x, index) => [x, curve.value[index]]));
    const kept = [...points].sort(([a], [b]) => a - b);
    return [kept.map(([x]) => x), kept.map(([, y]) => (state.log && !(y > 0) ? null : y))];
  }));
}

function plotOf(curves, width) {
  const css = getComputedStyle(document.documentElement);
  const ink = css.getPropertyValue("--faint"), line = css.getPropertyValue("--line");
  const several = content.runs.length > 1;
  const dashes = curves.map((curve, index) => DASHES[(several ? curves.filter((other) => other.run === curve.run).indexOf(curve) : index) % DASHES.length]);
  const series = curves.map((curve, index) => ({
    label: several ? `${content.runs[curve.run].name}: ${curve.name}` : curve.name,
    stroke: COLOURS[(several ? curve.run : index) % COLOURS.length],
    dash: dashes[index],
    width: 1.5,
    points: { show: curve.value.length < 60, size: 5 },
    value: (_, value) => number(value),
  }));
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  return new uPlot({
    width, height: 190,
    scales: { x: { time: false, range: withMargin }, y: { distr: state.log ? 3 : 1 } },
    axes: [{ ...axis, size: 34 }, { ...axis, size: 66, values: (_, values) => values.map(tickLabel) }],
    series: [{ label: state.x, value: (_, value) => number(value) }, ...series],
    hooks: { draw: [(plot) => drawMarks(plot, curves)], setCursor: [(plot) => { if (plot.cursor.left < 0) legendAtSlider(plot); }] },
    legend: { markers: { dash: (_, index) => BORDERS[DASHES.indexOf(dashes[index - 1])] } },
    cursor: { drag: { x: true, y: false }, sync: { key: "runs" }, dataIdx: (plot, line, index) => lastKnown(plot.data[line], index) },
  }, dataOf(curves), null);
}

function withMargin(_, least, most) { // a mark at the first or last row is not on the edge
  const margin = (most - least || 1) * 0.02;
  return [least - margin, most + margin];
}

function lastKnown(values, index) { // a curve without a value at this x shows the one before
  while (index > 0 && values[index] === undefined) index -= 1;
  return index;
}

function legendAtSlider(plot) { // while no mouse is over a plot
  const { ticks } = run();
  if (!ticks.row.length) return;
  const index = plot.data[0].findLastIndex((x) => x <= ticks[state.x][tick()]);
  plot.setLegend({ idxs: plot.data.map((values) => lastKnown(values, Math.max(0, index))) }, false);
}

function drawMarks(plot, curves) { // the moment of the slider, and where the run was resumed, rewired, or diverged
  const css = getComputedStyle(document.documentElement);
  const { ctx, bbox } = plot;
  const vertical = (x, colour, dash, width = 1) => {
    const at = Math.round(plot.valToPos(x, "x", true)) + 0.5;
    if (!(at >= bbox.left && at <= bbox.left + bbox.width)) return;
    ctx.save();
    ctx.strokeStyle = colour;
    ctx.lineWidth = width * devicePixelRatio;
    ctx.setLineDash(dash);
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  };
  const { ticks, marks } = run();
  for (const mark of marks) {
    if (mark.event === "started") continue;
    const position = ticks.row.findIndex((row) => row >= mark.row - 1);
    if (position >= 0) vertical(ticks[state.x][position], css.getPropertyValue(mark.event === "rewired" ? "--accent" : "--faint"), [2, 3]);
  }
  if (ticks.row.length) vertical(ticks[state.x][tick()], css.getPropertyValue("--cursor"), []);
  for (const { not_finite: since } of curves) if (since) vertical(since[state.x], css.getPropertyValue("--bad"), [6, 3], 3);
}

function buildPlots(box) {
  plots.forEach((plot) => plot.destroy());
  box.replaceChildren();
  plots = groups().map(([group, curves]) => {
    const place = element("div", { class: "plot" }, element("h3", {}, group), curves.filter((curve) => curve.not_finite).map((curve) =>
      element("div", { class: "bad" }, `${content.runs.length > 1 ? `${content.runs[curve.run].name}: ` : ""}${curve.name} ${curve.not_finite.words}`)));
    box.append(place);
    const plot = plotOf(curves, Math.max(260, box.clientWidth));
    place.append(plot.root);
    plot.over.addEventListener("click", (event) => moveTo(nearestTick(plot.posToVal(event.offsetX, "x"))));
    return plot;
  });
  if (!plots.length) box.append(element("p", { class: "faint" }, "No metrics are recorded yet."));
}

// ---- pages

function header(title, ...more) {
  const back = query.has("run") ? element("a", { href: "?" }, "← all runs") : "";
  return element("header", {}, back, element("h1", {}, title), ...more, element("span", { class: "grow" }), element("span", { id: "live", class: "faint", role: "status" }));
}

function showRuns() {
  const title = content.runs.map(({ name }) => name).join(" ↔ ");
  document.title = title;
  const several = content.runs.length > 1;
  const choice = several ? element("select", { "aria-label": "run", onchange: (event) => { state.run = Number(event.target.value); state.chosen = null; build(); } },
    content.runs.map(({ name }, index) => element("option", { value: String(index), selected: index === state.run }, name))) : "";
  const { graph, graph_error: noGraph } = run();
  const picture = pictureOf(graph), isDifference = picture && picture === content.difference;
  const old = document.querySelector(".graph-picture");
  const place = old ? [old.scrollLeft, old.scrollTop] : [0, 0];
  const box = element("div", { class: "graph-picture", id: isDifference ? "difference" : "picture" }, picture ? svgOf(picture.svg) : noGraph || graph.error);
  const changed = (name, value) => () => { state[name] = value; build(); };
  const tools = element("div", { class: "tools", role: "toolbar" }, choice,
    content.difference ? toggle("difference of the graphs", state.difference, changed("difference", !state.difference)) : "",
    isDifference ? "" : ["none", "runs", "seconds"].map((name) => toggle(`heat: ${name}`, state.heat === name, changed("heat", name))),
    !isDifference && graph && graph.pictures.length > 1 ? toggle("fold bodies", state.fold, changed("fold", !state.fold)) : "",
    [["−", 1 / 1.25], ["+", 1.25], ["fit", 0]].map(([name, factor]) => element("button", { onclick: () => zoom(box, factor), title: "zoom" }, name)));
  const curves = element("div", { id: "plots" });
  const plotTools = element("div", { class: "tools", role: "toolbar" },
    ["step", "epoch"].map((name) => toggle(`by ${name}`, state.x === name, changed("x", name))),
    toggle("logarithmic", state.log, changed("log", !state.log)));
  const slider = element("input", { type: "range", min: "0", id: "slider", "aria-label": "moment of the run", oninput: (event) => moveTo(Number(event.target.value)) });
  page.replaceChildren(
    header(title, element("span", { id: "state" })),
    element("div", { id: "why" }),
    element("div", { class: "columns" },
      element("section", { "aria-label": "graph" }, tools, box),
      element("section", { "aria-label": "metrics" }, element("div", { class: "detail", id: "detail", "aria-live": "polite" }), plotTools, curves)),
    element("section", { id: "facts" }),
    element("div", { class: "slider" }, slider, element("output", { id: "moment", for: "slider" })),
  );
  if (picture && !isDifference) prepare(box, picture);
  movable(box);
  zoom(box);
  box.scrollTo(...place);
  buildPlots(curves);
  refresh();
}

const isBad = (words) => /not finite|non-finite|^(it )?failed|^interrupted|has not stopped/.test(words);
const stated = (words) => element("span", { class: isBad(words) ? "bad" : "" }, words);

function stateOf({ status, condition, progress }) {
  return element("span", {}, element("b", {}, stated(condition)), ` ${status.place}`,
    status.state === "finished" || !status.position ? "" : element("span", { class: "faint" }, `, ${status.state === "failed" ? "in" : "next"} node ${status.position}`),
    progress ? element("progress", { max: "1", value: String(progress.done) }) : "", progress ? element("span", { class: "faint" }, progress.words) : "");
}

const whyOf = ({ why }) => element("div", {}, why.map((line) => element("div", { class: isBad(line) ? "bad" : "faint" }, line)));

function namesIn(part) { // of all runs, in order
  return [...new Set(content.runs.flatMap((run) => Object.keys(run[part])))];
}

function comparison() { // a row for each run: its state, the settings that differ, and its metrics
  const differing = namesIn("settings").filter((name) => new Set(content.runs.map(({ settings }) => settings[name])).size > 1);
  const names = namesIn("measured");
  return element("div", { class: "list" }, table(["run", "state", ...differing, ...names], content.runs.map((each) => [
    each.name, element("div", {}, stateOf(each), whyOf({ why: each.why.slice(0, 1) })), ...differing.map((name) => each.settings[name] ?? "–"), ...names.map((name) => each.measured[name] ?? "–"),
  ])));
}

function refresh() { // what changes with the moment, and with new rows
  if (!content || content.kind !== "runs") return;
  const { ticks } = run();
  const slider = document.getElementById("slider");
  slider.max = String(Math.max(0, ticks.row.length - 1));
  slider.value = String(tick());
  slider.disabled = ticks.row.length < 2;
  const several = content.runs.length > 1;
  document.getElementById("state").replaceChildren(several ? "" : stateOf(run()));
  document.getElementById("why").replaceChildren(several ? comparison() : whyOf(run()));
  const at = tick();
  document.getElementById("moment").textContent = (ticks.row[at] >= 0
    ? `row ${number(ticks.row[at] + 1)} of ${number(run().rows)} · step ${number(ticks.step[at])} · epoch ${number(ticks.epoch[at])}` : "before the first row of metrics") + (ticks.time[at] ? ` · ${clock(ticks.time[at])}` : "");
  const box = document.getElementById("picture");
  if (box) paint(box);
  document.getElementById("detail").replaceChildren(detail());
  document.getElementById("facts").replaceChildren(...facts());
  plots.forEach((plot) => { plot.redraw(false); legendAtSlider(plot); });
}

function facts() {
  const { ticks, next, replay, checkpoints, marks, settings } = run();
  const at = tick();
  const parts = [];
  const moment = state.tick !== null && ticks.step[at] && replay ? [[`${replay} '${ticks.step[at]} steps'`, "replays the moment shown"]] : [];
  parts.push(element("h2", {}, "What next"), [...next, ...moment].map(([text, about]) => element("div", { class: "copy" },
    text ? [element("button", { onclick: () => navigator.clipboard.writeText(text), title: "copy" }, "copy"), element("code", {}, text)] : "", element("span", { class: "faint" }, about))));
  const set = Object.entries(settings);
  if (set.length) parts.push(element("h2", {}, "Settings"), table([], set));
  if (marks.length > 1) parts.push(element("h2", {}, "Starts"), table(["", "at row", "time"], marks.map(({ event, row, time }) => [event, row, clock(time)])));
  if (checkpoints.length) parts.push(element("h2", {}, "Checkpoints"), table(["", "step", ""], checkpoints.map(({ name, step: when, best }) => [name, when, best])));
  return parts.flat();
}

function showFolder() {
  document.title = content.name;
  const compare = element("button", { disabled: !state.picked.size, onclick: () => { location.search = [...state.picked].map((name) => `run=${encodeURIComponent(name)}`).join("&"); } }, "compare selected runs");
  const names = new Set(content.runs.flatMap(({ cells }) => Object.keys(cells)));
  const columns = ["run", ...names].filter((name) => name === "run" || content.runs.some(({ cells }) => ![undefined, null, ""].includes(cells[name])));
  const cell = (each, name) => (name === "run" ? each.name : each.cells[name] ?? "");
  const [by, sign] = state.sort;
  const kept = content.runs.filter((each) => columns.map((name) => cell(each, name)).join(" ").toLowerCase().includes(state.filter.toLowerCase()));
  if (by) kept.sort((a, b) => compared(cell(a, by), cell(b, by), sign));
  const head = columns.map((name) => element("button", { class: "plain", onclick: () => { state.sort = [name, by === name ? -sign : 1]; build(); } }, name, by === name ? (sign > 0 ? " ▲" : " ▼") : ""));
  const rows = kept.map((each) => [
    element("input", { type: "checkbox", checked: state.picked.has(each.name), "aria-label": `select ${each.name}`, onchange: (event) => { state.picked[event.target.checked ? "add" : "delete"](each.name); compare.disabled = !state.picked.size; } }),
    element("a", { href: `?run=${encodeURIComponent(each.name)}` }, each.name),
    ...columns.slice(1).map((name) => (name === "state" ? stated(cell(each, name)) : name === "age" ? ago(cell(each, name)) : cell(each, name))),
  ]);
  const filter = element("input", { type: "search", id: "filter", placeholder: "filter", value: state.filter, oninput: (event) => { state.filter = event.target.value; build(); } });
  const isTyping = document.activeElement?.id === "filter";
  page.replaceChildren(header(content.name), element("p", { class: "tools" }, filter, compare), element("div", { class: "list" }, table(["", ...head], rows)));
  if (isTyping) { filter.focus(); filter.setSelectionRange(state.filter.length, state.filter.length); }
}

function compared(a, b, sign) { // numbers before texts; missing values last
  if (a === "" || b === "") return (a === "") - (b === "");
  return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
}

function ago(seconds) {
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([least]) => seconds >= 2 * least) ?? [1, "s"];
  return seconds === "" ? "" : `${Math.floor(seconds / size)}\u00a0${unit}\u00a0ago`;
}

function build() {
  ({ runs: showRuns, folder: showFolder })[content.kind]();
}

// The page is rebuilt only if its shape differs: a new row changes curves and counts, and nothing jumps.
function receive(received) {
  const before = content;
  content = received;
  if (content.kind !== "runs") { build(); return; }
  state.run = Math.min(state.run, content.runs.length - 1);
  const shape = JSON.stringify(content.runs.map(({ name, graph, curves }) => [name, graph && graph.pictures.map(({ svg }) => svg), curves.map((curve) => [curve.name, curve.not_finite])]));
  if (before === null || shape !== drawn) { drawn = shape; build(); return; }
  groups().forEach(([, curves], index) => {
    const { scales, data } = plots[index];
    plots[index].setData(dataOf(curves), scales.x.min <= data[0][0] && scales.x.max >= data[0].at(-1)); // a zoom stays
  });
  refresh();
}

// ---- colours, keys, size

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (content) build(); });

document.addEventListener("keydown", (event) => {
  const isSlider = event.target.id === "slider"; // which handles arrow keys itself
  if (event.ctrlKey || event.metaKey || event.altKey || (/^(INPUT|SELECT)$/.test(event.target.tagName) && !isSlider)) return;
  if (!content || content.kind !== "runs") return;
  if ("+-0".includes(event.key)) zoom(document.querySelector(".graph-picture"), { "+": 1.25, "-": 0.8, 0: 0 }[event.key]);
  if (event.key === "f") { state.fold = !state.fold; build(); }
  if (event.key === "ArrowLeft" && !isSlider) moveTo(tick() - 1);
  if (event.key === "ArrowRight" && !isSlider) moveTo(tick() + 1);
  if (event.key === "h") { state.heat = { none: "runs", runs: "seconds", seconds: "none" }[state.heat]; build(); }
});

let waiting = 0;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    const box = document.getElementById("plots");
    if (!box) return;
    plots.forEach((plot) => plot.setSize({ width: Math.max(260, box.clientWidth), height: 190 }));
    zoom(document.querySelector(".graph-picture"));
  }, 100);
});

// ---- where the content comes from

async function ask() {
  const response = await fetch(`content.json${location.search}`);
  const received = await response.json();
  if (!received.problem) { receive(received); live("● connected"); return; }
  if (content) live(`○ ${received.problem}`); else page.replaceChildren(header("graphtrain"), element("p", { class: "bad" }, received.problem));
  setTimeout(() => ask().catch(() => {}), 1000); // a file may be read while it is replaced
}

function live(text) {
  const place = document.getElementById("live");
  if (place) place.textContent = text;
}

function watch() { // the browser reconnects by itself after a restart of the server
  const events = new EventSource(`events${location.search}`);
  let asking = Promise.resolve();
  events.onmessage = () => { asking = asking.then(ask).catch(() => live("○ waiting for the server")); };
  events.onerror = () => live("○ waiting for the server");
}

const inside = document.getElementById("content");
if (inside) receive(JSON.parse(inside.textContent));
else watch();
