// Draws the page from /status.json, once a second.
//
// What a client has named (realms, users) is only ever the text of an element: nothing here makes elements of a string.
"use strict";

const INTERVAL_MS = 1000;
const WINDOW_MS = 600_000;
/** Rows of a table. */
const ROWS_MAX = 100;
const SVG = "http://www.w3.org/2000/svg";

/** The two newest snapshots, the newest last. What was before is in the newest. */
const history = [];

const place = (id) => document.getElementById(id);

function element(tag, classes = "", ...content) {
  const made = document.createElement(tag);
  made.className = classes;
  made.append(...content.map(String).map((text) => document.createTextNode(text)));
  return made;
}

function around(tag, classes, ...children) {
  const made = element(tag, classes);
  made.append(...children);
  return made;
}

function drawn(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function text(x, y, content, anchor = "start") {
  const made = drawn("text", { x, y, "text-anchor": anchor });
  made.textContent = content;
  return made;
}

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (count >= 1000 && unit < units.length - 1) {
    count /= 1000;
    unit++;
  }
  return `${count < 10 && unit > 0 ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
}

function bits(perSecond) {
  return `${bytes(perSecond).replace("B", "bit")}/s`;
}

function duration(seconds) {
  const parts = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = parts.findIndex(([length]) => seconds >= length);
  if (first < 0) return "0 s";
  let rest = seconds;
  return parts
    .slice(first, first + 2)
    .map(([length, unit]) => {
      const count = Math.floor(rest / length);
      rest -= count * length;
      return count ? `${count} ${unit}` : "";
    })
    .join(" ")
    .trim();
}

/** How fast a count grows, from the newest two snapshots. */
function rate(of) {
  if (history.length < 2) return 0;
  const [before, now] = history;
  return (Math.max(0, of(now) - of(before)) * 1000) / (now.at_ms - before.at_ms);
}

const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);

function showState(now) {
  place("version").textContent = `${now.version} on ${now.shards} ${now.shards === 1 ? "shard" : "shards"}, up ${duration(now.uptime_s)}`;
  state(now.is_draining ? "draining" : "serving", now.is_draining ? "warn" : "good");
}

function state(word, kind) {
  place("state").textContent = word;
  place("state").className = `state ${kind}`;
}

function tile(name, value, more) {
  return around("div", "tile", element("div", "name", name), element("div", "value", value), element("div", "more", more));
}

function showTotals(now) {
  const transports = Object.entries(now.sessions.by_transport).filter(([, count]) => count > 0);
  place("totals").replaceChildren(
    tile("Sessions", whole.format(now.sessions.count), transports.map(([name, count]) => `${whole.format(count)} ${name}`).join(", ") || "none"),
    tile("From clients", bits(rate((it) => it.datagrams.client_in_bytes) * 8), `${bytes(now.datagrams.client_in_bytes)} in all`),
    tile("From peers", bits(rate((it) => it.datagrams.peer_in_bytes) * 8), `${bytes(now.datagrams.peer_in_bytes)} in all`),
    tile("Dropped", `${short.format(rate((it) => sum(it.drops)))}/s`, `${whole.format(sum(now.drops))} in all`),
    tile("Lost at sockets", whole.format(now.datagrams.socket_drops), "by the kernel, before the relay read them"),
    tile("In flight", whole.format(now.datagrams.in_flight), "neither sent nor dropped"),
  );
}

/** A round number that is at least as large. */
function ceiling(value) {
  if (value <= 4) return 4;
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * scale).find((step) => step >= value);
}

/** How fast a count grew within the window: pairs of a time and a rate, up to the newest snapshot. */
function rates(now, name) {
  const times = [...now.history.at_ms, now.at_ms];
  const counts = [...now.history[name], now.datagrams[name] ?? sum(now.drops)];
  const points = [];
  for (let index = 1; index < times.length; index++) {
    const elapsed = times[index] - times[index - 1];
    // The newest snapshot may be taken just behind a sample, and says nothing then.
    if (elapsed < 1000) continue;
    points.push([times[index], (Math.max(0, counts[index] - counts[index - 1]) * 1000) / elapsed]);
  }
  return points;
}

function showRates(now) {
  // As wide as its place, so that words keep their size.
  const width = Math.max(240, place("rates").clientWidth);
  const [height, left, bottom] = [190, 52, 20];
  const series = [
    ["first", "from clients", "client_in"],
    ["second", "from peers", "peer_in"],
    ["bad", "dropped", "dropped"],
  ].map(([kind, name, member]) => ({ kind, name, points: rates(now, member) }));
  const top = ceiling(Math.max(...series.flatMap((it) => it.points.map(([, value]) => value)), 0));
  const x = (time) => width - ((now.at_ms - time) * (width - left)) / WINDOW_MS;
  const y = (value) => 8 + (1 - value / top) * (height - bottom - 8);
  const plot = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Datagrams per second in the last ten minutes" });
  for (const part of [0, 0.5, 1]) {
    plot.append(drawn("line", { x1: left, x2: width, y1: y(top * part), y2: y(top * part), class: "grid" }));
    plot.append(text(left - 8, y(top * part) + 4, short.format(top * part), "end"));
  }
  plot.append(text(left, height - 3, "10 min ago"), text(width, height - 3, "now", "end"));
  const legend = element("div", "legend");
  for (const { kind, name, points } of series) {
    const seen = points.filter(([time]) => x(time) >= left);
    const line = seen.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`);
    if (line.length > 1) {
      const [begin, end] = [x(seen[0][0]).toFixed(1), x(seen.at(-1)[0]).toFixed(1)];
      plot.append(drawn("path", { class: `area ${kind}`, d: `M${begin},${y(0)}L${line.join("L")}L${end},${y(0)}Z` }));
      plot.append(drawn("path", { class: `line ${kind}`, d: `M${line.join("L")}` }));
    }
    const entry = around("span", "", element("i", kind), document.createTextNode(`${name} `));
    entry.append(element("span", "", `${whole.format(Math.round(points.at(-1)?.[1] ?? 0))}/s`));
    legend.append(entry);
  }
  place("rates").replaceChildren(plot, legend);
}

function table(columns, rows) {
  const head = columns.map(([name, kind]) => element("th", kind, name));
  const cell = (value, [name, kind]) => {
    const made = element("td", kind, value);
    made.dataset.column = name;
    return made;
  };
  const cells = (row) => row.map((value, index) => cell(value, columns[index]));
  const body = rows.map((row) => around("tr", "", ...cells(row)));
  return around("table", "", around("thead", "", around("tr", "", ...head)), around("tbody", "", ...body));
}

const empty = (words) => element("p", "empty", words);

/** Adds up what the sessions of each user and realm have relayed, most bytes first. */
function sums(sessions) {
  const users = new Map();
  for (const it of sessions) {
    const key = JSON.stringify([it.realm, it.user]);
    const known = users.get(key) ?? { user: it.user, realm: it.realm, count: 0, from_client_bytes: 0, from_peers_bytes: 0 };
    known.count++;
    known.from_client_bytes += it.from_client_bytes;
    known.from_peers_bytes += it.from_peers_bytes;
    users.set(key, known);
  }
  const all = (it) => it.from_client_bytes + it.from_peers_bytes;
  return [...users.values()].sort((a, b) => all(b) - all(a));
}

/** The columns of sessions and of sums per user: name, kind, and what stands there. */
const USER = [
  ["User", "name", (it) => it.user],
  ["Realm", "name", (it) => it.realm],
];
const BYTES = [
  ["From client", "number", (it) => bytes(it.from_client_bytes)],
  ["From peers", "number", (it) => bytes(it.from_peers_bytes)],
];
const SESSION = [
  ...USER,
  ["By", "", (it) => it.transport],
  ["Client", "", (it) => it.client],
  ["Relayed address", "", (it) => it.relays.join(", ")],
  ["Age", "number", (it) => duration(it.age_s)],
  ["Expires in", "number", (it) => duration(it.expires_in_s)],
  ...BYTES,
];
const SUM = [...USER, ["Sessions", "number", (it) => whole.format(it.count)], ...BYTES];

function showSessions(now) {
  const { count, listed } = now.sessions;
  const wanted = place("filter").value.trim().toLowerCase();
  const found = listed.filter((it) => [it.user, it.realm, it.client, ...it.relays].some((value) => value.toLowerCase().includes(wanted)));
  const byUser = place("by-user").checked;
  const lines = byUser ? sums(found) : found;
  const notes = [];
  if (listed.length < count) notes.push(`Of ${whole.format(count)} sessions the first ${listed.length} are looked at.`);
  if (lines.length > ROWS_MAX) notes.push(`The first ${ROWS_MAX} of ${whole.format(lines.length)} are shown.`);
  place("sessions-note").textContent = notes.join(" ");
  if (lines.length === 0) {
    place("sessions").replaceChildren(empty(listed.length ? "No session matches." : "No sessions."));
    return;
  }
  const columns = byUser ? SUM : SESSION;
  const rows = lines.slice(0, ROWS_MAX).map((it) => columns.map(([, , of]) => of(it)));
  place("sessions").replaceChildren(table(columns, rows));
}

/** A bar of a share between 0 and 1. */
function meter(share, kind) {
  const fill = drawn("rect", { width: `${(share * 100).toFixed(2)}%`, height: "100%", rx: 3, class: "bar" });
  return drawn("svg", { class: `track ${kind}`, "aria-hidden": "true" }, fill);
}

function row(label, share, kind, count) {
  return around("div", "row", element("span", "label", label), meter(share, kind), element("span", "count", count));
}

function showDrops(now) {
  const drops = Object.entries(now.drops).filter(([, count]) => count > 0);
  drops.sort(([, a], [, b]) => b - a);
  const most = drops.length ? drops[0][1] : 0;
  const rows = drops.map(([reason, count]) => row(reason, count / most, "bad", whole.format(count)));
  place("drops").replaceChildren(...(rows.length ? rows : [empty("Nothing was dropped.")]));
}

function showPorts(now) {
  const rows = now.ports.map(({ address, leased, free }) => {
    const share = leased / Math.max(1, leased + free);
    return row(address, share, share > 0.8 ? "bad" : "first", `${short.format(leased)} of ${short.format(leased + free)}`);
  });
  place("ports").replaceChildren(...rows);
}

function bars(counts, kind, offset, [width, height, step]) {
  const all = Math.max(1, sum(counts));
  return counts.map((count, index) => {
    const share = count / all;
    const length = Math.max(count ? 1 : 0, share * height);
    const bar = drawn("rect", { x: index * step + offset, y: 4 + height - length, width, height: length, rx: 1.5, class: `bar ${kind}` });
    const title = drawn("title", {});
    title.textContent = `${whole.format(count)} calls, ${(share * 100).toFixed(1)} %`;
    bar.append(title);
    return bar;
  });
}

function showBatches(now) {
  const panels = now.batches.map(({ received, sent }, shard) => {
    const [step, height] = [34, 72];
    const plot = drawn("svg", { viewBox: `0 0 ${step * now.batch_bounds.length} ${height + 24}`, role: "img", "aria-label": `Shard ${shard}` });
    plot.append(drawn("line", { x1: 0, x2: step * now.batch_bounds.length, y1: height + 4, y2: height + 4, class: "grid" }));
    plot.append(...bars(received, "first", 4, [12, height, step]), ...bars(sent, "second", 18, [12, height, step]));
    now.batch_bounds.forEach((bound, index) => plot.append(text(index * step + step / 2, height + 18, bound, "middle")));
    return around("div", "", element("h3", "", `Shard ${shard}`), plot);
  });
  place("batches").replaceChildren(...panels);
}

function showCertificates(now) {
  if (now.certificates.length === 0) {
    place("certificates").replaceChildren(empty("Neither TLS nor DTLS is spoken."));
    return;
  }
  const columns = [
    ["File", "name"],
    ["Subject", "name"],
    ["Names", "name"],
    ["Valid until", ""],
    ["Days left", "number"],
  ];
  const rows = now.certificates.map((it) =>
    it.error ? [it.file, it.error, "", "", ""] : [it.file, it.subject, it.names.join(", "), it.not_after, it.days_left],
  );
  const made = table(columns, rows);
  now.certificates.forEach((it, index) => {
    const kind = it.error || it.days_left < 7 ? "bad" : it.days_left < 21 ? "warn" : "";
    if (kind) made.tBodies[0].rows[index].classList.add(kind);
  });
  place("certificates").replaceChildren(made);
}

async function look() {
  try {
    const response = await fetch("/status.json", { cache: "no-store", credentials: "omit" });
    if (!response.ok) throw new Error(`the server answers ${response.status}`);
    const now = await response.json();
    const last = history.at(-1);
    // A server that was started anew begins anew here.
    if (last && now.at_ms < last.at_ms) history.length = 0;
    if (!last || now.at_ms !== last.at_ms) {
      history.push(now);
      history.splice(0, history.length - 2);
      for (const show of [showState, showTotals, showRates, showSessions, showDrops, showPorts, showBatches, showCertificates]) show(now);
    }
  } catch (error) {
    state(error instanceof TypeError ? "no answer" : error.message, "bad");
  }
  setTimeout(look, INTERVAL_MS);
}

place("choice").addEventListener("submit", (event) => event.preventDefault());
place("choice").addEventListener("input", () => history.length && showSessions(history.at(-1)));

look();
