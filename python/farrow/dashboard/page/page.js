// The page: asks for what changed every second, and draws it. It only reads.

import { ago, bytes, count, curves, element, facts, fill, held, rate, seconds, share, span, time } from "./draw.js";

const POLL_MS = 1000;
const HISTORY_MAX = 600;
const TABS = { memory: "Memory", objects: "Objects", clients: "Clients", requests: "Requests", cluster: "Cluster", tables: "Huge tables", queries: "Queries" };
// Positions in a point of the history.
const [USED, HELD, REQUESTS, SEALED, TRIP] = [1, 2, 4, 5, 7];

const $ = (id) => document.getElementById(id);
const parts = {};
let history = [];
let sequence = 0;
let tab = "memory";
let shown = { rows: [], matching: 0, all: 0 };
let listNumber = null;
let searches = 0;
// What the dialog shows: an object or a client.
let opened = null;
let holdsNumber = 0;
let holdsShown = 0;
const order = { key: "name", down: false };

// The token of the URL. It stays in this tab, and in no history. A cookie would be sent to the
// servers of all other ports of this machine, which may be those of other users.
function token() {
  const address = new URL(location.href);
  const given = address.searchParams.get("token");
  if (given !== null) {
    sessionStorage.setItem("token", given);
    address.searchParams.delete("token");
    window.history.replaceState(null, "", address);
  }
  return sessionStorage.getItem("token") ?? "";
}

const headers = { Authorization: `Bearer ${token()}` };

async function get(path) {
  const answer = await fetch(path, { headers, signal: AbortSignal.timeout(15000), cache: "no-store" });
  if (answer.status === 403) throw new Error("The token is missing or wrong: open the URL that farrow dashboard printed.");
  if (!answer.ok) throw new Error(`The server answered ${answer.status}.`);
  return answer.json();
}

function tell(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text ?? "";
}

async function poll() {
  try {
    const body = await get(`changes.json?since=${sequence}`);
    if (body.all) history = [];
    history.push(...body.history);
    history = history.slice(-HISTORY_MAX);
    sequence = body.sequence;
    Object.assign(parts, body.parts);
    draw(Object.keys(body.parts));
    tell(parts.state.error && `The node does not answer; the figures are old. ${parts.state.error}`);
  } catch (error) {
    tell(error.name === "TypeError" ? "farrow dashboard has ended: start it again." : error.message);
  }
  setTimeout(poll, POLL_MS);
}

function draw(changed) {
  const has = (...names) => names.some((name) => changed.includes(name));
  if (!parts.node) return;
  if (has("node", "rates", "objects")) drawTop();
  if (has("map")) drawMap();
  if (has("node")) drawSpill();
  if (has("objects")) drawKinds();
  if (has("namespaces")) drawNamespaces();
  if (has("holds")) drawHeld();
  if (has("clients", "settings")) drawClients();
  if (has("requests")) drawLatencies();
  if (has("nodes", "cluster", "settings")) drawCluster();
  if (has("tables")) drawTables();
  if (has("queries")) drawQueries();
  drawCurves();
  if (tab === "objects" && parts.objects && parts.objects.number !== listNumber) search();
  // The parts have the oldest holds only: newer ones may have changed.
  if (opened) showHolds();
}

function drawTop() {
  const node = parts.node;
  $("node-name").textContent = node.name;
  document.title = node.name ? `Farrow: ${node.name}` : "Farrow";
  $("node-line").textContent =
    `process ${node.pid}, up ${span(node.uptime_ms / 1000)}, ${node.fabric}, ${node.coherence}, ` +
    `${node.memory}, socket ${node.address}`;
  const fixed = node.capacity - node.free - node.evictable;
  const tiles = [
    ["of memory used", share(node.used, node.capacity), false],
    ["cannot be freed", share(fixed, node.capacity), fixed > 0.9 * node.capacity],
    ["free", bytes(node.free), false],
    ["objects", count(node.objects), node.objects - node.client_objects > 0.9 * node.objects_max],
    ["clients", count(node.clients), node.clients > 0.9 * node.clients_max],
    ["holds", count(node.holds), false],
    ["requests", rate(parts.rates?.requests), false],
    ["wait for memory", count(node.waiting), node.waiting > 0],
  ];
  $("tiles").replaceChildren(
    ...tiles.map(([name, value, bad]) =>
      element("div", { class: bad ? "bad" : null }, element("b", {}, value), element("span", {}, name))),
  );
}

function drawMap() {
  const map = $("map");
  const cells = parts.map;
  while (map.children.length < cells.length) map.append(element("i"));
  const sums = [0, 0, 0, 0];
  cells.forEach(([free, granted, used, held], number) => {
    [free, granted, used, held].forEach((value, index) => (sums[index] += value));
    const kind = held ? "held" : used >= granted && used >= free ? "used" : granted > free ? "granted" : "";
    const cell = map.children[number];
    // Small values would vanish in the largest.
    const isLent = free + granted + used + held > 0;
    const name = kind || (used ? "used" : granted ? "granted" : isLent ? "" : "withdrawn");
    if (cell.className !== name) cell.className = name;
    cell.style.opacity = kind || !name || !isLent ? "" : "0.55";
    cell.title = !isLent ? "not lent" : `free ${bytes(free)}, granted ${bytes(granted)}, used ${bytes(used)}, held ${bytes(held)}`;
  });
  const names = ["free", "granted, being written", "used, not held", "held by readers"];
  const legend = names.map((name, index) =>
    element("li", {}, element("i", { class: ["", "granted", "used", "held"][index] }), `${name} ${bytes(sums[index])}`));
  $("map-legend").replaceChildren(...legend);
  map.setAttribute("aria-label", `Map of the memory: ${legend.map((item) => item.textContent).join(", ")}`);
}

// Names and commands are texts of any client: `fill` makes text nodes of them.
const objectCell = (hold) => ({
  text: (hold.name ?? `(${hold.id.slice(-8)})`) + (hold.is_copy ? ", a copy" : ""), name: true,
  title: hold.is_listed ? hold.id : `${hold.id}: not in the list: deleted, new, of another namespace, or ${hold.is_copy ? "its node cannot be listed" : "a deleted copy from another node"}`,
});
const processCell = (hold) => ({
  text: `${hold.process}${hold.command ? ` ${hold.command}` : ""}${hold.is_connected ? "" : ", not connected"}`, bad: !hold.is_connected,
});
const HOLDS_NOTE =
  "Times are UTC, of the first reading that showed a hold: one a second, and one in 5 s while no page is open. A hold that ends and begins again between two readings keeps its time.";

function drawHeld() {
  const { rows, all, are_all: areAll } = parts.holds;
  const more = all > rows.length ? `The oldest ${count(rows.length)} of ${areAll ? "" : "at least "}${count(all)} holds. ` : "";
  $("held-note").textContent = rows.length ? more + HOLDS_NOTE : "No object is held.";
  const columns = [{ title: "object" }, { title: "bytes", right: true, wide: true }, { title: "process" }, { title: "held" }];
  fill($("held"), columns, rows.map((hold) => [objectCell(hold), bytes(hold.bytes), processCell(hold), held(hold)]));
  $("held").hidden = !rows.length;
}

function drawCurves() {
  const node = parts.node;
  const lines = [{ index: USED }, { index: HELD, kind: "held" }];
  curves($("chart-memory"), history, lines, bytes, node.capacity);
  $("memory-note").textContent = `used ${bytes(node.used)}, held ${bytes(node.held)} of ${bytes(node.capacity)}`;
  for (const [place, index, note, format] of [
    ["sealed", SEALED, "", rate], ["requests", REQUESTS, "", rate], ["trip", TRIP, " of this page's requests", seconds],
  ]) {
    curves($(`chart-${place}`), history, [{ index }], format);
    const now = history.length ? history[history.length - 1][index] : null;
    const most = Math.max(0, ...history.map((point) => point[index] ?? 0));
    $(`${place}-note`).textContent = `${format(now)}${note}, at most ${format(most)}`;
  }
}

function drawSpill() {
  const node = parts.node;
  const reaction = { lru: "evict the least recently used objects", none: "refuse requests", spill: "spill objects to files" };
  facts($("spill"), [
    ["when memory is short", reaction[node.eviction] ?? node.eviction],
    ["can be evicted or spilled now", bytes(node.evictable)],
    ["pinned", `${count(node.objects_pinned)} objects, ${bytes(node.pinned)}`],
    ["evicted since start", `${count(node.evicted_total)} objects, ${bytes(node.evicted_bytes_total)}`],
    ["spilled now", `${count(node.objects_spilled)} objects, ${bytes(node.spilled)}`],
    ["spilled and restored since start", `${count(node.spilled_total)} and ${count(node.restored_total)} objects`],
    ["spill files that failed", count(node.spill_failures_total)],
    ["deleted and still held", `${count(node.objects_retiring)} objects, ${bytes(node.retiring)}`],
    ["in quarantine for a lost node", bytes(node.quarantine)],
    ["requests and replies", `${bytes(node.buffers)} of ${bytes(node.buffers_max)}`],
    ["longest free run", bytes(node.largest_free)],
  ]);
}

function drawKinds() {
  const columns = [{ title: "kind" }, { title: "objects", right: true }, { title: "bytes", right: true }];
  fill($("kinds"), columns, parts.objects.kinds.map(([kind, objects, size]) => [kind, count(objects), bytes(size)]));
}

function drawNamespaces() {
  const columns = [
    { title: "namespace" }, { title: "bytes", right: true }, { title: "of", right: true },
    { title: "objects", right: true }, { title: "of", right: true }, { title: "clients", right: true, wide: true }, { title: "writers", wide: true },
  ];
  const rows = parts.namespaces.map((one) => [
    { text: one.name || "(default)", name: true },
    { text: bytes(one.used_bytes), bad: one.nbytes !== null && one.used_bytes > 0.9 * one.nbytes },
    bytes(one.nbytes),
    { text: count(one.used_objects), bad: one.objects !== null && one.used_objects > 0.9 * one.objects },
    count(one.objects), count(one.clients), one.writers === null ? "all" : one.writers.join(", "),
  ]);
  fill($("namespaces"), columns, rows);
}

function drawClients() {
  const { rows, all } = parts.clients;
  const more = all > rows.length ? `; the ${rows.length} with the most memory are shown` : "";
  $("clients-note").textContent = `${count(all)} clients${more}. A hold is an object in use: its memory is not reused.`;
  const limits = parts.settings;
  const none = (value, text) => (value === null ? "no limit" : text(value));
  facts($("limits"), [
    ["memory of each client", none(limits.client_bytes, bytes)], ["objects of each client", none(limits.client_objects, count)],
    ["changed since the start", limits.changed.join(", ") || "nothing"],
  ]);
  const columns = [
    { title: "place", right: true, wide: true }, { title: "process", right: true }, { title: "command" },
    { title: "user", right: true, wide: true }, { title: "granted", right: true }, { title: "holds", right: true }, { title: "connected" },
  ];
  const cells = rows.map((one) => [
    count(one.slot), String(one.pid), { text: one.command || "-", long: true }, String(one.uid),
    { text: bytes(one.granted), bad: limits.client_bytes !== null && one.granted > 0.9 * limits.client_bytes }, count(one.holds),
    { text: one.is_connected ? "yes" : "no", bad: !one.is_connected },
  ]);
  fill($("clients-table"), columns, cells, { open: (number) => clientDetails(parts.clients.rows[number]) });
}

function drawLatencies() {
  const found = parts.requests;
  $("latency-note").textContent = found
    ? "Time in the event loop of the daemon, without waits. A get of an object in memory needs no request. Paler rows: since the start."
    : "Start the node with --metrics, or give farrow dashboard its --metrics address, to see times by kind of request.";
  $("errors-note").textContent = found && !found.errors.length ? "none since the start" : "";
  const right = (title, wide = false) => ({ title, right: true, wide });
  fill($("latencies"), [{ title: "request" }, right("count", true), right("rate"), right("mean"), right("99th percentile")],
    (found?.kinds ?? []).map((one) => [one.kind, count(one.count), rate(one.rate), seconds(one.mean), one.p99 === null ? "-" : `≤ ${seconds(one.p99)}`]));
  (found?.kinds ?? []).forEach((one, number) => ($("latencies").tBodies[0].rows[number].style.opacity = one.recent ? "" : "0.6"));
  fill($("errors"), [{ title: "error" }, right("count"), right("rate")],
    (found?.errors ?? []).map((one) => [one.kind.replaceAll("_", " "), count(one.count), rate(one.rate)]));
  $("errors").hidden = !found?.errors.length;
  for (const id of ["latencies", "errors-title", "errors-note"]) $(id).hidden = !found;
}

// What was not measured is not shown as zero.
const known = (value, text) => (value === null || value === undefined ? "-" : text(value));

function drawCluster() {
  const [nodes, lease] = [parts.nodes ?? [], parts.cluster];
  $("cluster-note").textContent = nodes.length ? "" : "This node is not in a cluster.";
  facts($("lease"), nodes.length && lease && lease.view !== null ? [
    ["view", count(lease.view)],
    ["lease", lease.has_lease ? `${seconds(lease.lease_left_seconds)} left` : "none: no name can be made here"],
    ["brought by network", `${count(lease.fetched.objects)} objects, ${bytes(lease.fetched.bytes)}`],
    ["memory for what is brought", parts.settings.cache === null ? "what is free" : `at most ${bytes(parts.settings.cache)}`],
  ] : []);
  const columns = [
    { title: "node" }, { title: "reach" }, { title: "memory" }, { title: "lends", right: true }, { title: "free", right: true }, { title: "latency", right: true }, { title: "bandwidth", right: true }, { title: "address", wide: true }, { title: "cause", wide: true },
  ];
  fill($("nodes"), columns, nodes.map((one) => [
    { text: one.is_own ? `${one.name} (this one)` : one.name || "-", name: true },
    { text: one.reach, bad: !["live", "left"].includes(one.reach) },
    one.fabric ? `${one.fabric}, ${one.coherence}` : "not mapped",
    bytes(one.capacity), known(one.free, bytes), known(one.latency_us, (us) => seconds(us / 1e6)), known(one.bytes_per_second, (rate) => `${bytes(rate)}/s`),
    one.address, { text: one.why_not || "-", long: true },
  ]));
  if (!nodes.length) $("nodes").replaceChildren();
  const select = $("at-node");
  const names = ["", ...nodes.map((one) => one.name).filter(Boolean)];
  if (names.join("\n") !== [...select.options].map((option) => option.value).join("\n")) {
    const before = select.value;
    select.replaceChildren(...names.map((name) => element("option", { value: name }, name || "all nodes")));
    select.value = names.includes(before) ? before : "";
  }
  select.hidden = names.length < 3;
}

function drawTables() {
  const tables = parts.tables;
  $("tables-note").textContent = tables.length ? "Rows and bytes of each huge table by node." : "There are no huge tables.";
  $("tables-list").replaceChildren(...tables.map((table) => {
    const total = table.nodes.reduce((sum, node) => sum + node[3], 0);
    const rows = table.nodes.reduce((sum, node) => sum + node[2], 0);
    const bar = element("div", { class: "share" });
    const legend = element("ul", { class: "legend" });
    table.nodes.forEach(([node, chunks, some, size], number) => {
      const piece = element("i", { class: `k${number % 6}` });
      piece.style.flex = String(Math.max(size, 1));
      bar.append(piece);
      legend.append(element("li", { class: `k${number % 6}` }, element("i", { class: "dot" }),
        `${node || "this node"}: ${count(some)} rows, ${bytes(size)}, ${count(chunks)} chunks`));
      legend.lastChild.firstChild.style.background = "var(--c)";
    });
    return element("article", {}, element("h3", {}, table.name), bar, element("span", { class: "note" }, `${count(rows)} rows, ${bytes(total)}`), legend);
  }));
}

function drawQueries() {
  const queries = parts.queries;
  $("queries-note").textContent = queries.length
    ? `${queries.length === 1 ? "One query runs" : `${count(queries.length)} queries run`} on workers of farrow sql.`
    : "No query runs on workers of farrow sql.";
  const columns = [{ title: "query" }, { title: "began" }, { title: "workers", right: true }, { title: "node", wide: true }, { title: "process", right: true, wide: true }];
  fill($("queries-table"), columns, queries.map((one) => [
    { text: one.text || "-", name: true }, { text: ago(one.began), title: time(one.began) }, one.workers || "-", one.node || "-", one.process || "-",
  ]));
  $("queries-table").hidden = !queries.length;
}

async function search() {
  const number = ++searches;
  const query = new URLSearchParams({
    q: $("query").value, state: $("state").value, node: $("at-node").value, sort: order.key, down: order.down ? "1" : "0",
  });
  const list = parts.objects?.number ?? null;
  try {
    const found = await get(`objects.json?${query}`);
    // A later search may have been answered first.
    if (number !== searches) return;
    shown = found;
    listNumber = list;
  } catch (error) {
    return tell(error.message);
  }
  const missing = parts.objects?.unlisted.length ? ` Not listed, since they cannot be reached: ${parts.objects.unlisted.join(", ")}.` : "";
  const first = shown.matching > shown.rows.length ? `, the first ${count(shown.rows.length)} are shown` : "";
  $("objects-note").textContent = `${count(shown.matching)} of ${count(shown.all)} objects${first}.${missing}`;
  const columns = [
    { title: "name", sort: "name" }, { title: "kind", sort: "kind", wide: true }, { title: "bytes", sort: "bytes", right: true },
    { title: "sealed", sort: "sealed" }, { title: "last use", sort: "used", wide: true }, { title: "state", wide: true },
    { title: "node", sort: "node", wide: true }, { title: "creator", right: true, wide: true },
  ];
  const choose = (key) => {
    order.down = order.key === key ? !order.down : ["bytes", "sealed", "used"].includes(key);
    order.key = key;
    search();
  };
  fill($("objects-table"), columns, shown.rows.map((row) => [
    { text: row.name ?? `(${row.id.slice(-8)})`, name: true }, row.kind, bytes(row.bytes),
    { text: ago(row.sealed_at), title: time(row.sealed_at) }, { text: ago(row.last_use), title: time(row.last_use) },
    [row.pinned && "pinned", row.spilled && "spilled"].filter(Boolean).join(", "), row.node ?? "-", String(row.creator_pid),
  ]), { open: details, sort: { ...order, choose } });
}

function details(number) {
  const row = shown.rows[number];
  const dialog = $("details");
  dialog.querySelector("h2").textContent = row.name ?? "(no name)";
  facts(dialog.querySelector("dl"), [
    ["id", row.id], ["kind", row.kind], ["bytes", `${count(row.bytes)} (${bytes(row.bytes)})`],
    ["sealed", `${time(row.sealed_at)} UTC, ${ago(row.sealed_at)}`], ["last use", `${time(row.last_use)} UTC, ${ago(row.last_use)}`],
    ["state", row.spilled ? "spilled to a file" : row.pinned ? "in memory, pinned" : "in memory"],
    ["node", row.node ?? "-"], ["creator", `process ${row.creator_pid}`],
    ...row.metadata.map(([key, value]) => [`label ${key}`, value]),
  ]);
  show({ title: "Holders", query: { object: row.id }, node: row.node });
}

function clientDetails(row) {
  const dialog = $("details");
  dialog.querySelector("h2").textContent = `Process ${row.pid}${row.command ? ` ${row.command}` : ""}`;
  facts(dialog.querySelector("dl"), [
    ["place", count(row.slot)], ["user", String(row.uid)], ["granted", bytes(row.granted)], ["holds", count(row.holds)],
    ["connected", row.is_connected ? "yes" : "no"],
  ]);
  show({ title: "Objects that it holds", query: { client: row.slot, process: row.pid }, node: null });
}

function show(what) {
  const dialog = $("details");
  opened = what;
  dialog.querySelector("h3").textContent = what.title;
  $("details-note").textContent = "";
  $("details-holds").replaceChildren();
  dialog.showModal();
  showHolds();
}

async function showHolds() {
  const number = ++holdsNumber;
  const what = opened;
  let found;
  try {
    found = await get(`holds.json?${new URLSearchParams(what.query)}`);
  } catch (error) {
    if (what === opened && number > holdsShown) $("details-note").textContent = error.message;
    return;
  }
  // Another dialog may have been opened, or a later answer may be there.
  if (number < holdsShown || what !== opened) return;
  holdsShown = number;
  const rows = found.rows;
  const isObject = "object" in what.query;
  const first = found.all > rows.length ? `The oldest ${count(rows.length)} of ${count(found.all)} are shown. ` : "";
  const rest = found.are_all ? "" : "The node has more holds than one reading lists, so some may be missing. ";
  const none = found.is_here ? "none" : `Holders at ${what.node ? `node ${what.node}` : "its node"} are on its dashboard. Here is no reader of a copy.`;
  $("details-note").textContent = rows.length ? first + rest + HOLDS_NOTE : rest + none;
  const columns = isObject
    ? [{ title: "process" }, { title: "place", right: true, wide: true }, { title: "held" }]
    : [{ title: "object" }, { title: "bytes", right: true, wide: true }, { title: "held" }];
  fill($("details-holds"), columns, rows.map((hold) => isObject
    ? [processCell(hold), count(hold.client), held(hold)]
    : [objectCell(hold), bytes(hold.bytes), held(hold)]));
  $("details-holds").hidden = !rows.length;
}

function choose(name) {
  tab = name in TABS ? name : "memory";
  for (const key of Object.keys(TABS)) {
    $(key).hidden = key !== tab;
    $(`tab-${key}`).setAttribute("aria-selected", String(key === tab));
  }
  if (tab === "objects") search();
}

for (const [key, title] of Object.entries(TABS)) {
  const button = element("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": key }, title);
  button.addEventListener("click", () => (location.hash = key));
  $("tabs").append(button);
}
addEventListener("hashchange", () => choose(location.hash.slice(1)));
$("search").addEventListener("submit", (event) => event.preventDefault());
let typing = null;
$("query").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(search, 200);
});
for (const id of ["state", "at-node"]) $(id).addEventListener("change", search);
$("details").addEventListener("close", () => (opened = null));
choose(location.hash.slice(1));
poll();
