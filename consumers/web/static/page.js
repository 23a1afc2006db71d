// Shows what the service publishes. Texts from the stream are only ever set as text, never as markup.

const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const FEW_LOADINGS = 16;
const FEW_ROWS = 24;
const ROW_PIXELS = 18;
const MOST_POINTS = 240;
const SILENT_SECONDS = 12;

const known = { current: null, points: [], facts: {}, skew: 0 };
const view = { component: 0, all: false, allRows: false, filter: "" };
let source = null;
let heardAt = Date.now();
let retry = 0;

// Numbers in words

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function number(x) {
  const size = Math.abs(x);
  if (x === 0) return "0";
  if (size >= 1e12 || size < 1e-4) return x.toExponential(2);
  return new Intl.NumberFormat("en", { maximumSignificantDigits: 3 }).format(x);
}

function duration(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const percent = (x) => `${(100 * x).toFixed(1)} %`;
const signed = (x) => (x < 0 ? "−" : "+") + Math.abs(x).toFixed(3);
const now = () => Date.now() / 1000 + known.skew;  // by the clock of the server

function make(tag, className, parent, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

// The stream of events

function connect() {
  clearTimeout(retry);
  if (source) source.close();
  source = new EventSource("/events");
  const on = (name, action) => source.addEventListener(name, (event) => {
    heardAt = Date.now();
    action(JSON.parse(event.data));
    drawLive();
  });
  on("history", (found) => { take(found, true); });
  on("release", (found) => { take(found, false); });
  on("facts", (found) => {
    known.facts = found;
    known.skew = found.now - Date.now() / 1000;
    drawTiles();
    drawBeyond();
    drawWaiting(hasLearned());
  });
  source.onerror = () => {
    drawLive();
    // A refused connection is tried again by the browser; a refused request is not.
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(connect, 2000);
  };
}

function take(found, anew) {
  if (anew) known.points = [];
  known.current = found.current;
  for (const point of found.points) {
    point.rows = point.cells.map(decode);
    known.points.push(point);
  }
  known.points.splice(0, Math.max(0, known.points.length - MOST_POINTS));
  draw();
}

function hasLearned() {
  return known.current !== null && known.current.components.length > 0;
}

function decode(text) {
  const bytes = atob(text);
  const row = new Int8Array(bytes.length);
  for (let i = 0; i < bytes.length; i++) row[i] = bytes.charCodeAt(i);
  return row;
}

// Drawing

let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    drawHead();
    drawTiles();
    const learned = hasLearned();
    $("charts").hidden = !learned;
    drawWaiting(learned);
    if (!learned) return;
    $("grid").classList.toggle("few", known.current.features.length <= 8);
    view.component = Math.min(view.component, known.current.components.length - 1);
    drawTabs();
    drawLoadings();
    drawScree();
    drawSpectrum();
    drawLimits();
    drawCharts();
    drawHeat();
  });
}

function drawLive() {
  const silent = Date.now() - heardAt > SILENT_SECONDS * 1000;
  const on = source !== null && source.readyState === EventSource.OPEN && !silent;
  $("live").classList.toggle("on", on);
  $("live").lastElementChild.textContent = on ? "live" : "connection lost, trying again";
}

const STATUS = {
  learned: ["learned", "good"], skipped: ["last batch skipped", "warn"],
  starting: ["starting", "warn"], nothing_learned: ["nothing learned yet", "bad"],
};

function drawHead() {
  const current = known.current;
  const pill = $("status");
  if (current === null) {
    pill.textContent = "waiting for the first release";
    pill.className = "pill";
    return;
  }
  document.title = `${current.model} · stream-dppca`;
  $("model").textContent = current.model;
  let [words, kind] = STATUS[current.status] || [current.status, ""];
  if (current.status === "learned" && current.drift) [words, kind] = ["the stream has changed", "warn"];
  pill.textContent = words;
  pill.className = `pill ${kind}`;
  pill.title = current.words;
  $("meaning").textContent = current.meaning;
  $("promise").textContent = current.promise;
  $("promise").classList.toggle("bad", !current.private);
}

function interval() {
  // Seconds between releases, from the last ones; times are rounded to the second.
  const timed = known.points.filter((p) => p.time !== null).slice(-20);
  if (timed.length < 2) return null;
  return (timed[timed.length - 1].time - timed[0].time) / (timed.length - 1);
}

function drawTiles() {
  const { current, facts } = known;
  $("intro").hidden = current === null;
  if (current !== null) {
    const age = current.time === null ? null : now() - current.time;
    const every = interval();
    $("age").textContent = age === null ? "–" : age < 1.5 ? "just now" : `${duration(age)} ago`;
    $("age-note").textContent = current.time === null ? "" : new Date(current.time * 1000).toLocaleString();
    $("batch").textContent = whole.format(current.batch);
    $("records").textContent = current.extent;
    const tile = $("next-tile");
    let words = "–", note = "", share = 0, late = false;
    if (every !== null && age !== null) {
      const left = every - age;
      late = age > 3 * every + 5;
      if (late) { words = "waiting"; note = `one came every ${every < 1 ? "second or less" : duration(every)}`; }
      else if (every < 1.5) { words = "within a second"; note = `${number(1 / Math.max(every, 0.05))} per second`; share = 1; }
      else { words = left < 1 ? "any moment" : `in about ${duration(left)}`; note = `every ${duration(every)}`; share = Math.min(age / every, 1); }
    }
    const lag = facts.lag;
    if (facts.needed && lag !== undefined) {
      share = Math.min(lag / facts.needed, 1);
      if (lag < facts.needed || every === null || every >= 1.5) note = `${whole.format(Math.min(lag, facts.needed))} of ${whole.format(facts.needed)} messages are there`;
    }
    tile.classList.toggle("late", late);
    $("next").textContent = words;
    $("next-note").textContent = note;
    $("next-bar").style.width = `${100 * share}%`;
  }
  $("service-tile").hidden = facts.state === undefined;
  if (facts.state !== undefined) {
    $("state").textContent = facts.state;
    $("lag").textContent = facts.note || (facts.lag === undefined ? "" : `lag: ${whole.format(facts.lag)} messages`);
  }
  drawLive();
}

function drawWaiting(learned) {
  const current = known.current;
  $("waiting").hidden = learned;
  if (learned) return;
  let title = "Waiting for the first release", text = "A release comes with every full batch of records.", share = 0;
  const [taken, all] = known.facts.step || [0, 1];
  if (current !== null && current.status === "starting") {
    const last = Math.max(current.batch, current.first_batches);
    title = `Starting: ${current.batch} of ${last}`;
    text = "The centre and the scale of each feature are being learned, privately. Components come next.";
    share = current.batch / last;
  } else if (current === null && all > 1) {
    text = `The first release needs ${all} batches of records at once: batch ${taken + 1} of ${all}.`;
    share = taken / all;
  } else if (current !== null) {
    title = "Nothing learned yet";
    text = current.words;
  }
  $("waiting-title").textContent = title;
  $("waiting-text").textContent = text;
  $("waiting-bar").style.width = `${100 * share}%`;
  $("waiting-bar").parentElement.hidden = share === 0;
}

function drawTabs() {
  const tabs = $("tabs"), count = known.current.components.length;
  tabs.hidden = count < 2;
  if (tabs.childElementCount !== count) {
    tabs.replaceChildren();
    for (let j = 0; j < count; j++) {
      make("button", "", tabs, `Component ${j + 1}`).addEventListener("click", () => { view.component = j; draw(); });
    }
  }
  [...tabs.children].forEach((tab, j) => tab.setAttribute("aria-pressed", j === view.component));
}

function order(loadings) {
  return [...loadings.keys()].sort((a, b) => Math.abs(loadings[b]) - Math.abs(loadings[a]));
}

const rows = [];
function loadingRow(i) {
  if (!rows[i]) {
    const row = make("div", "", $("loadings"));
    rows[i] = { row, name: make("span", "name", row), value: make("span", "value", row), track: make("span", "track", row) };
    rows[i].bar = make("span", "bar", rows[i].track);
    rows[i].whisker = make("span", "whisker", rows[i].track);
  }
  return rows[i];
}

function drawLoadings() {
  const { features, components } = known.current;
  const { loadings, noise, change, around } = components[view.component];
  const sorted = order(loadings);
  $("filter").hidden = features.length <= FEW_LOADINGS;
  const wanted = view.filter.toLowerCase();
  let shown = wanted ? sorted.filter((j) => features[j].toLowerCase().includes(wanted)) : sorted;
  const found = shown.length;
  if (!view.all) shown = shown.slice(0, FEW_LOADINGS);
  // One scale for all rows: from the lowest end of a bar or whisker to the highest.
  let low = 0, high = 0;
  for (const j of shown) {
    const sd = noise ? Math.min(2 * noise[j], 1) : 0;
    low = Math.min(low, loadings[j] - sd);
    high = Math.max(high, loadings[j] + sd);
  }
  const span = high - low || 1, place = (x) => 100 * (x - low) / span;
  $("loadings").classList.toggle("long", shown.length > 2 * FEW_LOADINGS);
  $("loadings").style.setProperty("--row", `${Math.max(26, Math.min(36, Math.floor(460 / Math.max(shown.length, 1))))}px`);
  $("loadings").style.setProperty("--zero", `${place(0)}%`);
  shown.forEach((j, i) => {
    const { row, name, value, bar, whisker } = loadingRow(i);
    const weight = loadings[j], sd = noise ? noise[j] : null;
    row.hidden = false;
    row.className = (weight < 0 ? "negative" : "positive") + (sd !== null && Math.abs(weight) < 2 * sd ? " unsure" : "");
    name.textContent = features[j];
    value.textContent = signed(weight);
    let title = `${features[j]}: ${signed(weight)}`;
    if (sd !== null) title += ` ± ${(2 * sd).toFixed(3)}`;
    if (change) title += `\ntypical change ${number(change[j])} around ${number(around[j])}`;
    row.firstChild.title = bar.parentElement.title = title;
    bar.style.left = `${place(Math.min(weight, 0))}%`;
    bar.style.width = `${100 * Math.abs(weight) / span}%`;
    whisker.hidden = sd === null;
    if (sd !== null) {
      whisker.style.left = `${Math.max(place(weight - 2 * sd), 0)}%`;
      whisker.style.width = `${Math.min(100 * 4 * sd / span, 100)}%`;
    }
  });
  for (let i = shown.length; i < rows.length; i++) rows[i].row.hidden = true;
  const more = $("more");
  more.hidden = found <= FEW_LOADINGS;
  more.textContent = view.all ? `Show the largest ${FEW_LOADINGS}` : `Show all ${whole.format(found)}`;
}

function drawScree() {
  const parts = known.current.components;
  const knows = parts.every((c) => c.ratio !== null);
  $("scree").hidden = $("variance").hidden = !knows;
  $("no-scree").hidden = knows;
  if (!knows) return;
  const scree = $("scree");
  const wanted = parts.length + 1;
  if (scree.childElementCount !== wanted) {
    scree.replaceChildren();
    for (let j = 0; j < wanted; j++) {
      const row = make("div", j < parts.length ? "" : "rest", scree);
      make("span", "name", row, j < parts.length ? (parts.length > 1 ? `Component ${j + 1}` : "Component") : "The rest");
      const track = make("span", "track", row);
      make("span", "bar", track);
      make("span", "whisker", track);
      make("span", "value", row);
    }
  }
  const sum = parts.reduce((total, c) => total + c.ratio, 0);
  [...scree.children].forEach((row, j) => {
    const last = j === parts.length;
    const share = last ? Math.max(1 - sum, 0) : parts[j].ratio;
    const sd = last ? null : parts[j].ratio_sd;
    const [, track, value] = row.children;
    const [bar, whisker] = track.children;
    bar.style.width = `${100 * share}%`;
    whisker.hidden = sd === null;
    if (sd !== null) {
      const from = Math.max(share - 2 * sd, 0), to = Math.min(share + 2 * sd, 1);
      whisker.style.left = `${100 * from}%`;
      whisker.style.width = `${100 * (to - from)}%`;
    }
    value.textContent = percent(share) + (sd === null ? "" : ` ± ${number(Number((200 * sd).toPrecision(2)))}`);
  });
}

function drawSpectrum() {
  const values = known.current.eigenvalues, k = known.current.components.length;
  const host = $("spectrum"), most = Math.max(...values.map(([x, sd]) => x + 2 * sd), 1e-9);
  while (host.childElementCount > values.length) host.lastChild.remove();
  while (host.childElementCount < values.length) {
    const row = make("div", "", host);
    make("span", "name", row, host.childElementCount);
    const track = make("span", "track", row);
    make("span", "bar", track);
    make("span", "whisker", track);
    make("span", "value", row);
  }
  values.forEach(([x, sd], j) => {
    const row = host.children[j], [bar, whisker] = row.children[1].children;
    row.className = j < k ? "" : "other";
    bar.style.width = `${100 * x / most}%`;
    const from = Math.max(x - 2 * sd, 0);
    whisker.style.left = `${100 * from / most}%`;
    whisker.style.width = `${100 * (x + 2 * sd - from) / most}%`;
    row.children[2].textContent = `${number(x)} ± ${number(2 * sd)}`;
  });
  $("spectrum-note").textContent = values.length === 0 ? "No eigenvalue is known to stand out of the noise."
    : values.length > k ? `${values.length} stand out, ${k} ${k === 1 ? "is" : "are"} learned: docs/results.md says how many to take.`
    : "No more than are learned stand out of the noise.";
}

const SCORES = { spe: "SPE, away from the components", t2: "T2, along the components" };

function drawLimits() {
  const host = $("limits-table");
  host.replaceChildren();
  const limits = known.current.limits;
  for (const name of Object.keys(SCORES)) {
    for (const [rate, value, sd] of limits[name] || []) {
      make("span", "", host, SCORES[name]);
      make("span", "", host, `${number(100 * rate)} % of the records exceed`);
      make("span", "", host, `${number(value)} ± ${number(2 * sd)}`);
    }
  }
  if (!host.childElementCount) make("span", "head", host, "None is known yet: they need more records, or are switched off (limits).");
}

function drawBeyond() {
  const beyond = known.facts.beyond;
  $("beyond").hidden = beyond === undefined;
  if (beyond === undefined) return;
  $("public").textContent = "Not private: records beyond a limit. Everything else here was published.";
  const { share, rate, alarms } = beyond, high = share !== null && share > 2 * rate;
  $("beyond-share").textContent = !rate ? "The release has no such limit at present: nothing is compared." : share === null ? "Not yet known: the release has no limit, or few records were scored."
    : `${percent(share)} of the last records; at most ${percent(rate)} should be.`;
  $("beyond-share").classList.toggle("bad", high);
  const list = $("alarms");
  list.replaceChildren();
  for (const { key, beyond, seen, contributions } of alarms) {
    const why = contributions.map(([name, size]) => `${name} ${size < 0 ? "too low" : "too high"} (${number(size)})`).join(", ");
    make("li", "", list, `${key}: ${whole.format(beyond)} of ${whole.format(seen)} records, by ${why}`);
  }
}

// Charts over batches

function decades(u) {
  const { min, max } = u.scales.y, found = [];
  for (let e = Math.round(Math.log10(min)); e <= Math.round(Math.log10(max)); e++) found.push(10 ** e);
  return found;
}

const charts = { variance: null, movement: null, limits: null };

function axes(unit) {
  const soft = css("--soft"), grid = { stroke: css("--faint"), width: 1 }, ticks = { show: false };
  const font = "12px system-ui, sans-serif";
  return [
    { stroke: soft, grid: { show: false }, ticks, font, size: 28, values: (_, at) => at.map((x) => Number.isInteger(x) ? whole.format(x) : "") },
    { stroke: soft, grid, ticks, font, size: 50, values: (_, at) => at.map((x) => x === null ? "" : `${number(x)}${unit}`) },
  ];
}

const driftMarks = {
  hooks: {
    draw: [(u) => {
      u.ctx.save();
      u.ctx.strokeStyle = css("--drift");
      u.ctx.lineWidth = 2 * devicePixelRatio;
      u.ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
      for (const point of known.points) {
        if (!point.drift) continue;
        const x = u.valToPos(point.batch, "x", true);
        u.ctx.beginPath();
        u.ctx.moveTo(x, u.bbox.top);
        u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
        u.ctx.stroke();
      }
      u.ctx.restore();
    }],
  },
};

function chart(name, options, data, words) {
  const host = $(name), size = { width: Math.max(host.clientWidth, 100), height: host.clientHeight || 190 };
  if (charts[name]) { charts[name].setData(data); return; }
  charts[name] = new uPlot({
    ...size, ...options, plugins: [driftMarks], legend: { show: false }, padding: [8, 8, 0, 0],
    cursor: { drag: { x: false, y: false }, points: { size: 7 } },
    hooks: { setCursor: [(u) => { $(`${name}-read`).textContent = u.cursor.idx === null || u.cursor.left < 0 ? "" : words(u, u.cursor.idx); }] },
  }, data, host);
}

function drawCharts() {
  const points = known.points, j = view.component;
  const batches = points.map((p) => p.batch);
  const pick = (f) => points.map((p) => { const x = f(p); return x === undefined ? null : x; });
  const ratio = pick((p) => p.ratios[j]), sd = pick((p) => p.ratio_sds[j]);
  const edge = (sign) => ratio.map((x, i) => x === null || sd[i] === null ? null : Math.min(Math.max(100 * (x + sign * 2 * sd[i]), 0), 100));
  const blue = css("--plus"), dot = points.length < 40;
  const x = { time: false };
  if (!$("variance").hidden) {
    chart("variance", {
      scales: { x, y: { range: (_, min, max) => [Math.max(0, Math.floor((min ?? 0) - 2)), Math.min(100, Math.ceil((max ?? 100) + 2))] } },
      axes: axes(" %"),
      series: [{}, { stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } }, { stroke: blue, width: 2, points: { show: false } }],
      bands: [{ series: [2, 1], fill: blue + "33" }],
    }, [batches, edge(-1), edge(+1), ratio.map((r) => r === null ? null : 100 * r)],
    (u, i) => u.data[3][i] === null ? "" : `batch ${whole.format(u.data[0][i])}: ${u.data[3][i].toFixed(1)} %`);
  }
  $("limits").hidden = !points.some((p) => Object.keys(p.limits).length);
  if (!$("limits").hidden) {
    const line = (name) => ({ stroke: css(name), width: 2, points: { show: dot, size: 5, fill: css(name) } });
    chart("limits", { scales: { x, y: { range: (_, min, max) => [0, 1.1 * (max ?? 1)] } }, axes: axes(""), series: [{}, line("--plus"), line("--minus")] },
      [batches, pick((p) => p.limits.spe), pick((p) => p.limits.t2)],
      (u, i) => `batch ${whole.format(u.data[0][i])}: ` + ["SPE", "T2"].map((name, k) => `${name} ${u.data[k + 1][i] === null ? "–" : number(u.data[k + 1][i])}`).join(", "));
  }
  // On a logarithmic scale there is no zero.
  const positive = (v) => v !== null && v > 0 ? Math.max(v, 1e-3) : null;
  chart("movement", {
    scales: { x, y: { distr: 3, range: (_, min, max) => min === null || max === null ? [0.1, 100] : [10 ** Math.floor(Math.log10(min)), 10 ** Math.ceil(Math.log10(max) + 1e-9)] } },
    axes: axes("°").map((axis, i) => i ? { ...axis, splits: decades } : axis),
    series: [{}, { stroke: css("--floor"), width: 1, fill: css("--floor") + "55", points: { show: false } }, { stroke: blue, width: 2, points: { show: dot, size: 5, fill: blue } }],
  }, [batches, pick((p) => positive(p.floor)), pick((p) => positive(p.moved))],
  (u, i) => u.data[2][i] === null ? "" : `batch ${whole.format(u.data[0][i])}: ${number(u.data[2][i])}°`);
}

function rebuildCharts() {
  for (const name of Object.keys(charts)) {
    if (charts[name]) charts[name].destroy();
    charts[name] = null;
  }
  draw();
}

// The heat map

let heat = null;  // what is on the canvas, for the pointer

function colour(name) {
  const text = css(name), at = (i) => parseInt(text.slice(i, i + 2), 16);
  return text.length === 4 ? [1, 2, 3].map((i) => parseInt(text[i] + text[i], 16)) : [at(1), at(3), at(5)];
}

function drawHeat() {
  const { features, components } = known.current, j = view.component;
  const points = known.points.filter((p) => p.rows.length > j);
  const sorted = order(components[j].loadings);
  const few = features.length > FEW_ROWS && !view.allRows;
  const shown = few ? sorted.slice(0, FEW_ROWS) : sorted;
  const all = $("heat-all");
  all.hidden = features.length <= FEW_ROWS;
  all.textContent = view.allRows ? `Show the largest ${FEW_ROWS}` : `Show all ${whole.format(features.length)}`;
  const pixels = shown.length <= FEW_ROWS ? Math.max(ROW_PIXELS, Math.min(38, Math.floor(230 / shown.length))) : Math.max(Math.min(ROW_PIXELS, Math.floor(640 / shown.length)), 1);
  const names = $("heat-names");
  names.hidden = pixels < 12;
  if (!names.hidden) {
    while (names.childElementCount > shown.length) names.lastChild.remove();
    shown.forEach((f, i) => {
      const line = names.children[i] || make("div", "", names);
      line.textContent = features[f];
      line.style.height = line.style.lineHeight = `${pixels}px`;
    });
  }
  const peak = Math.max(...points.map((p) => p.peaks[j]), 1e-9);
  const canvas = $("heat"), width = Math.max(points.length, 1), height = shown.length;
  canvas.width = width;
  canvas.height = height;
  canvas.style.height = `${pixels * height}px`;
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  const plus = colour("--plus"), minus = colour("--minus"), zero = colour("--card");
  points.forEach((point, x) => {
    const row = point.rows[j], scale = point.peaks[j] / (127 * peak);
    shown.forEach((f, y) => {
      const value = row[f] * scale, end = value < 0 ? minus : plus, at = 4 * (y * width + x);
      // Among many features the square root lets small loadings show.
      const t = features.length > FEW_ROWS ? Math.sqrt(Math.abs(value)) : Math.abs(value);
      for (let c = 0; c < 3; c++) image.data[at + c] = zero[c] + t * (end[c] - zero[c]);
      image.data[at + 3] = 255;
    });
  });
  context.putImageData(image, 0, 0);
  heat = { points, shown, features, j };
  $("heat-from").textContent = points.length ? `batch ${whole.format(points[0].batch)}` : "";
  $("heat-to").textContent = points.length ? `batch ${whole.format(points[points.length - 1].batch)}` : "";
  $("scale-low").textContent = `−${number(peak)}`;
  $("scale-high").textContent = `+${number(peak)}`;
}

$("heat").addEventListener("pointermove", (event) => {
  if (!heat || !heat.points.length) return;
  const box = $("heat").getBoundingClientRect();
  const at = (part, size, count) => Math.min(Math.max(Math.floor(part / size * count), 0), count - 1);
  const point = heat.points[at(event.clientX - box.left, box.width, heat.points.length)];
  const feature = heat.shown[at(event.clientY - box.top, box.height, heat.shown.length)];
  const value = point.rows[heat.j][feature] / 127 * point.peaks[heat.j];
  $("heat-read").textContent = `${heat.features[feature]} in batch ${whole.format(point.batch)}: ${signed(value)}${point.drift ? " (the stream changed)" : ""}`;
});
$("heat").addEventListener("pointerleave", () => { $("heat-read").textContent = ""; });

// Controls

$("filter").addEventListener("input", (event) => { view.filter = event.target.value.trim(); drawLoadings(); });
$("more").addEventListener("click", () => { view.all = !view.all; drawLoadings(); });
$("heat-all").addEventListener("click", () => { view.allRows = !view.allRows; drawHeat(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuildCharts);
new ResizeObserver(() => {
  for (const name of Object.keys(charts)) {
    const host = $(name);
    if (charts[name] && host.clientWidth > 0) charts[name].setSize({ width: host.clientWidth, height: host.clientHeight });
  }
}).observe(document.body);
setInterval(drawTiles, 1000);
connect();
