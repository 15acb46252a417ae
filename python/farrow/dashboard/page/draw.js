// Elements and numbers. Texts from the store become text nodes only: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** An element with attributes and children; a string child is text. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export function bytes(value) {
  if (value === null || value === undefined) return "-";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

export function count(value) {
  return value === null || value === undefined ? "-" : Math.round(value).toLocaleString("en");
}

export function rate(value) {
  if (value === null || value === undefined) return "-";
  return `${value > 0 && value < 10 ? value.toFixed(1) : count(value)}/s`;
}

export function share(part, whole) {
  return whole ? `${Math.round((100 * part) / whole)} %` : "-";
}

export function seconds(value) {
  if (value === null || value === undefined) return "-";
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(value * 1e9)} ns`;
}

export function span(total) {
  const [days, hours, minutes] = [total / 86400, (total / 3600) % 24, (total / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${Math.floor(total)} s`;
}

/** How long ago a time in milliseconds was. */
export function ago(ms) {
  return ms ? `${span(Math.max(0, (Date.now() - ms) / 1000))} ago` : "-";
}

export function time(ms) {
  return ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 23) : "-";
}

/** Time of day of a time in milliseconds, with the date if it is another one. */
function clock(ms) {
  const [day, hour] = time(ms).slice(0, 19).split(" ");
  return day === time(Date.now()).slice(0, 10) ? hour : `${day} ${hour}`;
}

/** Since when a hold is known to be there: a cell of a table. */
export function held(hold) {
  const known = clock(hold.since);
  if (hold.is_exact) return { text: `since ${known}`, title: `${time(hold.since)} UTC, ${ago(hold.since)}` };
  // An object is held only once it is sealed.
  const least = Math.max(hold.not_before ?? 0, hold.sealed_at ?? 0);
  const reason = hold.is_first ? " (start of the dashboard)" : "";
  const title = least ? `between ${time(least)} and ${time(hold.since)} UTC` : `${time(hold.since)} UTC or before`;
  return { text: `at least since ${known}${reason}`, title, long: true };
}

/**
 * Fills a table. A column is {title, right, wide, sort}; a cell is a text, or {text, bad, name, long,
 * title}. `open` makes rows that call it with their number.
 */
export function fill(table, columns, rows, { open = null, sort = null } = {}) {
  const kind = (column, extra = "") =>
    [column.right && "right", column.wide && "wide", extra].filter(Boolean).join(" ") || null;
  const head = columns.map((column) => {
    const cell = element("th", { class: kind(column), scope: "col" });
    if (sort && column.sort) {
      const down = sort.key === column.sort ? (sort.down ? " ↓" : " ↑") : "";
      const button = element("button", { type: "button" }, column.title + down);
      button.addEventListener("click", () => sort.choose(column.sort));
      cell.append(button);
    } else {
      cell.append(column.title);
    }
    return cell;
  });
  const body = rows.map((row, number) => {
    const line = element("tr");
    row.forEach((value, index) => {
      const cell = typeof value === "object" && value !== null ? value : { text: value };
      const extra = [cell.bad && "bad", cell.name && "name", cell.long && "long"].filter(Boolean).join(" ");
      const attributes = { class: kind(columns[index], extra), title: cell.title ?? null };
      line.append(element("td", attributes, String(cell.text ?? "-")));
    });
    if (open) {
      line.className = "open";
      line.tabIndex = 0;
      line.addEventListener("click", () => open(number));
      line.addEventListener("keydown", (event) => event.key === "Enter" && open(number));
    }
    return line;
  });
  // A table that is drawn again leaves the keyboard where it was.
  const focused = [...(table.tBodies[0]?.rows ?? [])].indexOf(document.activeElement);
  table.replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
  if (open && focused >= 0) body[Math.min(focused, body.length - 1)]?.focus({ preventScroll: true });
}

/** Fills a list of names and values. */
export function facts(list, pairs) {
  list.replaceChildren(
    ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]),
  );
}

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** Draws curves over time: points are [seconds, value, ...], one curve for each {index, kind}. */
export function curves(place, points, lines, format, least = 0) {
  const [width, height, top] = [600, 110, 8];
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const values = points.flatMap((point) => lines.map((line) => point[line.index] ?? 0));
  const most = Math.max(least, ...values) || 1;
  const [first, last] = points.length ? [points[0][0], points[points.length - 1][0]] : [0, 1];
  const x = (at) => ((at - first) / Math.max(last - first, 10)) * width;
  const y = (value) => height - 2 - (value / most) * (height - top - 2);
  for (const part of [0, 0.5, 1]) {
    svg.append(shape("line", { class: "grid", x1: 0, x2: width, y1: y(part * most), y2: y(part * most) }));
  }
  for (const line of lines) {
    let path = "";
    for (const point of points) {
      const value = point[line.index];
      if (value === null || value === undefined) continue;
      path += `${path ? "L" : "M"}${x(point[0]).toFixed(1)} ${y(value).toFixed(1)}`;
    }
    if (path) svg.append(shape("path", { d: path, class: line.kind ?? "" }));
  }
  place.replaceChildren(svg);
  place.title = `most: ${format(most)}`;
}
