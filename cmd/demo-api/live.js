"use strict";
// The page asks for the state of the demo several times a second and shows it.
// Nothing comes from elsewhere, and nothing is kept.

const every = 250; // milliseconds between two looks
const shown = 60_000 / every; // looks that the plot has room for
const $ = (id) => document.getElementById(id);

const seconds = (ms) => (ms < 10_000 ? (ms / 1000).toFixed(1) : Math.round(ms / 1000)) + " s";
const millis = (ms) => (ms < 1000 ? Math.round(ms) + " ms" : seconds(ms));

// set changes text only where it differs, so that screen readers are not told
// what they know.
function set(id, text) {
  text = String(text);
  if ($(id).textContent !== text) $(id).textContent = text;
}

// Rates, over the last second, of counters that only grow.
const past = []; // {at, requests, loads}, oldest first
const rates = []; // {requests, loads} a second, oldest first

function count(state, at) {
  const last = past.at(-1);
  if (last && state.requests < last.requests) past.length = rates.length = 0; // another process
  past.push({ at, requests: state.requests, loads: state.loads });
  while (past.length > 2 && at - past[0].at > 1100) past.shift();
  const first = past[0];
  const span = Math.max(at - first.at, every) / 1000;
  rates.push({ requests: (state.requests - first.requests) / span, loads: (state.loads - first.loads) / span });
  while (rates.length > shown) rates.shift();
}

// ceiling is the next of 10, 20, 50, 100, ... above n.
function ceiling(n) {
  for (let ten = 10; ; ten *= 10) for (const c of [1, 2, 5]) if (c * ten >= n) return c * ten;
}

function plot() {
  const top = ceiling(Math.max(10, ...rates.map((r) => Math.max(r.requests, r.loads))));
  const line = (what) => rates.map((r, i) => {
    const x = 600 * (1 - (rates.length - 1 - i) / (shown - 1));
    return x.toFixed(1) + "," + (158 - 156 * r[what] / top).toFixed(1);
  }).join(" ");
  $("line-requests").setAttribute("points", line("requests"));
  $("line-loads").setAttribute("points", line("loads"));
  set("plot-top", top);
  const now = rates.at(-1);
  set("requests-now", Math.round(now.requests));
  set("loads-now", Math.round(now.loads));
}

const leaseText = {
  "nobody": () => "nobody holds it",
  "unknown": () => "not known while the store is away",
  "this process": (l) => `this process, for ${millis(l.held_ms)}; would run out in ${millis(l.left_ms)}`,
  "another process": (l) => `${l.who}, would run out in ${millis(l.left_ms)}`,
};

const hotText = {
  fresh: (h) => `for another ${seconds(h.fresh_ms)}`,
  stale: (h) => `served for another ${seconds(h.left_ms)}, while one process rebuilds it`,
  absent: () => "the origin has no such product",
  missing: (h) => (h.waiting ? "it is being loaded" : "the next caller's load brings it"),
  unknown: () => "the store is away",
};

function showHot(s) {
  const hot = s.hot;
  set("hot-state", hot.state);
  $("hot-state").dataset.state = hot.state;
  set("hot-left", hotText[hot.state](hot));
  const whole = Math.max(hot.age_ms + hot.left_ms, 1);
  $("life-fresh").style.width = 100 * hot.fresh_ms / whole + "%";
  $("life-stale").style.width = 100 * Math.max(hot.left_ms - hot.fresh_ms, 0) / whole + "%";
  set("lease", s.mode === "guard" ? leaseText[s.lease.holder](s.lease) : "no leases in this mode");
  set("waiting", hot.waiting);
  set("age", hot.token ? seconds(hot.age_ms) : "-");
  set("token", hot.token || "-");
  set("in-use", `${s.origin.in_use} of ${s.origin.connections} in use`);
  set("store", (s.store.away ? "cut off" : "in reach") + (s.store.breaker ? "; breaker open: it is not asked" : ""));
}

let lastStorm = 0;

function showStorms(storms) {
  if (!storms.length || storms[0].n === lastStorm) return;
  lastStorm = storms[0].n;
  $("storms").replaceChildren(...storms.map((s) => {
    const row = document.createElement("tr");
    row.dataset.n = s.n;
    const bar = `<svg viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true"><rect height="12" width="${Math.min(100, 100 * s.loads / s.callers)}"/></svg>`;
    for (const text of [s.mode, s.when, s.callers, s.loads, null, millis(s.median_ms), millis(s.slowest_ms), s.errors]) {
      const cell = row.insertCell();
      if (text === null) {
        cell.className = "bar";
        cell.innerHTML = bar; // numbers of ours only
      } else cell.textContent = text;
    }
    return row;
  }));
  const s = storms[0];
  set("said", `Storm in mode ${s.mode}: ${s.callers} callers, ${s.loads} origin load${s.loads === 1 ? "" : "s"}, the slowest waited ${millis(s.slowest_ms)}, ${s.errors} errors.`);
}

// pick shows what is in force, unless the user is about to choose.
function pick(id, value) {
  if (document.activeElement !== $(id)) $(id).value = value;
}

function show(s) {
  count(s, performance.now());
  plot();
  set("requests-all", s.requests);
  set("loads-all", s.loads);
  showHot(s);
  showStorms(s.storms);
  $("locked").hidden = s.controls;
  $("controls").disabled = !s.controls;
  $("send-storm").disabled = s.storming;
  pick("mode", s.mode);
  pick("rate", s.rate);
  pick("delay", s.origin.delay_ms);
  $("failing").setAttribute("aria-pressed", s.origin.failing);
  $("away").setAttribute("aria-pressed", s.store.away);
}

let timer = 0;

async function look() {
  clearTimeout(timer);
  try {
    const answer = await fetch("/live/state", { signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
    $("trouble").hidden = true;
  } catch {
    if ($("trouble").hidden) $("trouble").textContent = "The demo does not answer. Is it still running? This page goes on trying.";
    $("trouble").hidden = false;
  }
  clearTimeout(timer);
  timer = setTimeout(look, document.hidden ? 2000 : every);
}

// control sends what the user has chosen. One thing after the other: it has its
// effect, and is told, in the order in which it was chosen.
let turn = Promise.resolve();
const control = (path, args, done) => (turn = turn.then(() => send(path, args, done)));

async function send(path, args, done) {
  try {
    const answer = await fetch(`/live/${path}?${new URLSearchParams(args)}`, { method: "POST", signal: AbortSignal.timeout(10_000) });
    if (!answer.ok) {
      const why = (await answer.text()).trim();
      set("said", why.charAt(0).toUpperCase() + why.slice(1) + ".");
      return;
    }
    set("said", done);
    show(await answer.json());
  } catch {
    set("said", "The demo does not answer.");
  }
}

const pressed = (id) => $(id).getAttribute("aria-pressed") === "true";
const origin = (failing, done) => control("origin", { delay_ms: $("delay").value, failing }, done);

document.querySelector('[data-post="expire"]').addEventListener("click", () => control("expire", {}, "Expired: stale from now on."));
document.querySelector('[data-post="invalidate"]').addEventListener("click", () => control("invalidate", {}, "Invalidated: gone, and so is what was being loaded."));
$("send-storm").addEventListener("click", () => control("storm", { callers: $("callers").value, when: $("when").value }, "The storm is on its way."));
$("mode").addEventListener("change", () => control("mode", { mode: $("mode").value }, `Mode ${$("mode").value}.`));
$("rate").addEventListener("change", () => control("rate", { rate: $("rate").value }, `Steady readers: ${$("rate").value} a second.`));
$("delay").addEventListener("change", () => origin(pressed("failing"), "The origin's time has changed."));
$("failing").addEventListener("click", () => origin(!pressed("failing"), pressed("failing") ? "The origin works again." : "The origin fails from now on."));
$("away").addEventListener("click", () => control("store", { away: !pressed("away") }, pressed("away") ? "The line is back." : "The line is cut."));
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
look();
