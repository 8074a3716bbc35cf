// Draws the page from /status.json, once a second.
//
// What a client has named (realms, users) is only ever the text of an element: nothing here makes elements of a string.
"use strict";

const HISTORY = 120;
const INTERVAL_MS = 1000;
const SVG = "http://www.w3.org/2000/svg";

/** Snapshots, the newest last, without repetitions. */
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
function rate(of, at = history.length - 1) {
  if (at < 1) return 0;
  const [before, now] = [history[at - 1], history[at]];
  const seconds = (now.at_ms - before.at_ms) / 1000;
  return Math.max(0, of(now) - of(before)) / seconds;
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
    tile("In flight", whole.format(now.datagrams.in_flight), "neither sent nor dropped"),
  );
}

/** A round number that is at least as large. */
function ceiling(value) {
  if (value <= 4) return 4;
  const scale = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * scale).find((step) => step >= value);
}

function showRates() {
  const [width, height, left, bottom] = [1100, 190, 52, 20];
  const series = [
    ["first", "from clients", (it) => it.datagrams.client_in],
    ["second", "from peers", (it) => it.datagrams.peer_in],
  ].map(([kind, name, of]) => ({ kind, name, values: history.slice(1).map((_, index) => rate(of, index + 1)) }));
  const top = ceiling(Math.max(...series.flatMap((it) => it.values), 0));
  const x = (index, count) => width - ((count - 1 - index) * (width - left)) / (HISTORY - 2);
  const y = (value) => 8 + (1 - value / top) * (height - bottom - 8);
  const plot = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Datagrams per second" });
  for (const part of [0, 0.5, 1]) {
    plot.append(drawn("line", { x1: left, x2: width, y1: y(top * part), y2: y(top * part), class: "grid" }));
    plot.append(text(left - 8, y(top * part) + 4, short.format(top * part), "end"));
  }
  plot.append(text(left, height - 3, "2 min ago"), text(width, height - 3, "now", "end"));
  const legend = element("div", "legend");
  for (const { kind, name, values } of series) {
    const points = values.map((value, index) => `${x(index, values.length).toFixed(1)},${y(value).toFixed(1)}`);
    if (points.length > 1) {
      const start = x(0, values.length).toFixed(1);
      plot.append(drawn("path", { class: `area ${kind}`, d: `M${start},${y(0)}L${points.join("L")}L${width},${y(0)}Z` }));
      plot.append(drawn("path", { class: `line ${kind}`, d: `M${points.join("L")}` }));
    }
    const entry = around("span", "", element("i", kind), document.createTextNode(`${name} `));
    entry.append(element("span", "", `${whole.format(Math.round(values.at(-1) ?? 0))}/s`));
    legend.append(entry);
  }
  place("rates").replaceChildren(plot, legend);
}

function table(columns, rows) {
  const head = columns.map(([name, kind]) => element("th", kind, name));
  const cells = (row) => row.map((value, index) => element("td", columns[index][1], value));
  const body = rows.map((row) => around("tr", "", ...cells(row)));
  return around("table", "", around("thead", "", around("tr", "", ...head)), around("tbody", "", ...body));
}

const empty = (words) => element("p", "empty", words);

function showSessions(now) {
  const { count, listed } = now.sessions;
  place("sessions-note").textContent = listed.length < count ? `The first ${listed.length} of ${whole.format(count)}.` : "";
  if (listed.length === 0) {
    place("sessions").replaceChildren(empty("No sessions."));
    return;
  }
  const columns = [
    ["User", "name"],
    ["Realm", "name"],
    ["By", ""],
    ["Client", ""],
    ["Relayed address", ""],
    ["Age", "number"],
    ["Expires in", "number"],
    ["From client", "number"],
    ["From peers", "number"],
  ];
  const rows = listed.map((it) => [
    it.user,
    it.realm,
    it.transport,
    it.client,
    it.relays.join(", "),
    duration(it.age_s),
    duration(it.expires_in_s),
    bytes(it.from_client_bytes),
    bytes(it.from_peers_bytes),
  ]);
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
      history.splice(0, history.length - HISTORY);
      for (const show of [showState, showTotals, showRates, showSessions, showDrops, showPorts, showBatches, showCertificates]) show(now);
    }
  } catch (error) {
    state(error instanceof TypeError ? "no answer" : error.message, "bad");
  }
  setTimeout(look, INTERVAL_MS);
}

look();
