"use strict";
// Sort tables by a click on a column; list, filter, open and download the answers in the page. Without this script the
// tables stand as they are. Texts come from files that nobody has checked: they are set as text only, never as markup.

const SHOWN_FIRST = 25, SHOWN_MORE = 100;
const collator = new Intl.Collator(undefined, { numeric: true });
const isMissing = (value) => value === null || value === "" || value === "–" || Number.isNaN(value);

/** Create an element with properties and content. */
function make(name, properties, ...content) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...content);
  return element;
}

/** Read the number at the beginning of a cell, such as 0.5 in "0.5–0.7" and 0.002 in "< 0.002"; NaN without one. */
function readNumber(text) {
  return text.startsWith("∞") ? Infinity : parseFloat(text.replace("−", "-").replace(/^[<+ ]+/, ""));
}

/** Return the items by size of their keys; missing keys are last in either direction. */
function sortBy(items, keys, down) {
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b));
  const keyed = items.map((item, place) => [keys[place], item]);
  keyed.sort(([a], [b]) => {
    const either = isMissing(a) - isMissing(b);
    return either || isMissing(a) ? either : down ? compare(b, a) : compare(a, b);
  });
  return keyed.map(([, item]) => item);
}

/** Cut a text to its first words. */
function shorten(text) {
  return text.length > 90 ? [...text.slice(0, 99)].slice(0, 90).join("") + "…" : text;
}

/** Put a button into each heading. The first click sorts numbers from the largest, and texts from the first. */
function makeSortable(head, sort) {
  for (const cell of head.cells) {
    if (cell.matches(".axis")) continue;
    const button = make("button", { type: "button" }, ...cell.childNodes);
    if (!button.textContent.trim()) button.textContent = "name";
    button.addEventListener("click", () => {
      const before = cell.getAttribute("aria-sort");
      const down = before ? before === "ascending" : cell.matches(".num");
      for (const other of head.cells) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      sort(cell.cellIndex, down);
    });
    cell.append(button);
  }
}

/** Save rows of cells as CSV. Texts that a spreadsheet program would run as formulas get an apostrophe in front. */
function download(name, rows) {
  const escape = (value) => {
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? "'" + value
      : String(typeof value === "number" ? +value.toFixed(9) : value ?? "");
    return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  };
  const lines = rows.map((row) => row.map(escape).join(",") + "\n");
  const href = URL.createObjectURL(new Blob(lines, { type: "text/csv" }));
  make("a", { href, download: name + ".csv" }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60000);
}

for (const table of document.querySelectorAll("table:not(.matrix)")) {
  const body = table.tBodies[0];
  const read = (row, place) => row.cells[place].firstChild?.textContent.trim() ?? "";
  if (body.rows.length > 1) {
    makeSortable(table.tHead.rows[0], (place, down) => {
      const rows = [...body.rows], texts = rows.map((row) => read(row, place));
      const numbers = texts.map(readNumber);
      const numeric = place && texts.every((text, row) => isMissing(text) || !Number.isNaN(numbers[row]));
      body.append(...sortBy(rows, numeric ? numbers : texts, down));
    });
  }
}

/** Build the table of the answers in the section `place`, with filters, details of each row and a download. */
function listAnswers(place) {
  const { parts, scores, rows, pictures } = JSON.parse(place.querySelector("script").textContent);
  const say = (score) => (typeof score === "number" ? String(+score.toFixed(2)) : score ?? "–");
  const values = parts.map((_, place) => [...new Set(rows.map((row) => row.parts[place]).filter(Boolean))]);
  // A property with one value says nothing of a row.
  const told = parts.map((_, place) => place).filter((place) => values[place].length > 1);
  const apart = rows.some((row) => row.apart !== null);
  const columns = [
    { name: "id", read: (row) => row.id },
    ...scores.map((name, place) => ({ name, number: true, read: (row) => row.scores[place] ?? null, show: say }))
      .filter(({ read }) => rows.some((row) => read(row) !== null)),
    ...(apart ? [{ name: "apart", number: true, read: (row) => row.apart, show: say }] : []),
    ...told.map((place) => ({ name: parts[place], read: (row) => row.parts[place] || "" })),
  ];

  const chosen = new Map(), form = make("form", { className: "filters" });
  for (const place of told.filter((place) => values[place].length <= 200)) {
    const select = make("select", {}, make("option", { value: "" }, "all"));
    for (const value of values[place].sort(collator.compare)) select.append(make("option", { value }, value));
    chosen.set(place, select);
    form.append(make("label", {}, parts[place], select));
  }
  const least = make("input", { type: "number", min: 0, step: "any", placeholder: "any" });
  if (apart) form.append(make("label", {}, "judge and people apart by more than", least));
  const save = make("button", { type: "button" }, "Download as CSV");
  form.append(save);

  const head = make("tr"), body = make("tbody"), more = make("button", { type: "button" });
  for (const { name, number } of columns) head.append(make("th", { scope: "col", className: number ? "num" : "" }, name));
  const status = make("p", { className: "soft" });
  status.setAttribute("role", "status");
  const caption = make("caption", {}, make("span", {}, rows.some((row) => row.texts.length)
    ? "An id opens its question, answer, images and reasons." : "The files do not hold the texts of these answers."));
  const scroll = make("div", { className: "scroll", tabIndex: 0 }, make("table", {}, caption, make("thead", {}, head), body));
  let sorted = rows, kept = rows;

  /** Build the cell below a row: its texts and images. */
  function describe(row) {
    const cell = make("div", { className: "opened" });
    for (const [label, text] of row.texts) {
      cell.append(make("div", { className: "text" }, make("h5", {}, label), make("p", { lang: row.lang }, text)));
    }
    for (const image of row.images) {
      // The number of a picture in the page, or the name of one that is not.
      const uris = typeof image === "number" ? pictures[image] : [];
      const shown = uris.map((src, place) => make("img", { src,
        alt: uris.length > 1 ? "Frame " + (place + 1) + " of the question's video" : "Image of the question" }));
      cell.append(make("div", { className: "text" }, make("h5", {}, uris.length > 1 ? "Video" : "Image"),
        ...(uris.length ? shown : [make("p", {}, image + " (not in this page)")])));
    }
    return make("tr", {}, make("td", { colSpan: columns.length }, cell));
  }

  /** Build the row of an answer. Its button opens what is below it. */
  function build(row) {
    const line = make("tr"), button = make("button", { type: "button", title: row.id }, row.id);
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "false";
      button.setAttribute("aria-expanded", open);
      if (open) line.after(describe(row));
      else line.nextSibling.remove();
    });
    const start = row.texts.length ? [make("small", {}, shorten(row.texts[0][1]))] : [];
    line.append(make("th", { scope: "row" }, row.texts.length || row.images.length ? button : row.id, ...start));
    for (const { number, read, show } of columns.slice(1)) {
      line.append(make("td", { className: number ? "num" : "" }, show ? show(read(row)) : read(row)));
    }
    return line;
  }

  /** Show up to `count` rows, and say how many there are. */
  function show(count) {
    body.replaceChildren(...kept.slice(0, count).map(build));
    announce();
  }

  function announce() {
    const count = body.querySelectorAll("th").length;
    const [matching, all] = [kept, rows].map(({ length }) => length.toLocaleString("en"));
    status.textContent = `${count} of ${matching} rows shown` + (matching === all ? "." : ` (${all} without filters).`);
    more.textContent = `Show ${Math.min(SHOWN_MORE, kept.length - count)} more`;
    more.hidden = count === kept.length;
  }

  function filter() {
    const wanted = [...chosen].filter(([, select]) => select.value).map(([place, select]) => [place, select.value]);
    kept = sorted.filter((row) => wanted.every(([place, value]) => row.parts[place] === value)
      && (least.value === "" || row.apart > +least.value));
    show(SHOWN_FIRST);
  }

  makeSortable(head, (place, down) => {
    sorted = sortBy(rows, rows.map(columns[place].read), down);
    filter();
  });
  more.addEventListener("click", () => {
    const count = body.querySelectorAll("th").length, next = kept.slice(count, count + SHOWN_MORE).map(build);
    body.append(...next);
    announce();
    next[0].querySelector("button").focus();
  });
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  save.addEventListener("click", () => {
    const labels = [...new Set(rows.flatMap((row) => row.texts.map(([label]) => label)))];
    const cells = kept.map((row) => {
      const texts = new Map(row.texts);
      return [...columns.map(({ read }) => read(row)), ...labels.map((label) => texts.get(label))];
    });
    download("answers", [[...columns.map(({ name }) => name), ...labels], ...cells]);
  });
  filter();
  place.querySelector("details").append(form, status, scroll, more);
  for (const hidden of document.querySelectorAll("#answers, nav a[href='#answers']")) hidden.hidden = false;
}

const place = document.getElementById("answers");
if (place) listAnswers(place);
