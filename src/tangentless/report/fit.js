// The report of a fit: pictures, pairs under the pointer, neighbours, and the images of a confusion cell.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { items, classes, columns, neighbours } = data;
  const count = data.matrix.count;
  const most = 60; // images shown of a confusion cell
  const $ = (id) => document.getElementById(id);
  let matrix = null; // set once it is decompressed
  let view = null;
  let chosen = 0;

  // Children that are strings become text nodes, never HTML: class names may hold anything.
  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  const number = (value) => (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? Number(value.toPrecision(5)).toString() : value.toExponential(3));
  const share = (value) => `${(100 * value).toFixed(0)}\u00a0%`;
  const label = (code) => (classes.length ? classes[code] : number(code));
  const title = (item) => `${items.test[item] ? "test" : "training"} row ${items.row[item]}`;

  function thumb(item, size) {
    if (columns === null) return element("span", { class: "thumb blank" }, `row ${items.row[item]}`);
    const place = `--x:${item % columns};--y:${Math.floor(item / columns)}`;
    return element("span", { class: `thumb ${size}`, style: place });
  }

  function verdict(item) {
    const truth = element("b", {}, label(items.truth[item]));
    if (!classes.length) return [truth, `, predicted ${number(items.guess[item])}`];
    const right = items.truth[item] === items.guess[item];
    const said = element("span", right ? {} : { class: "other" }, `${right ? "✓" : "✗"} ${label(items.guess[item])} ${share(items.sure[item])}`);
    return [truth, element("br", {}), said];
  }

  function example(item, ...words) {
    const made = element("button", { class: "example", type: "button", "data-item": item, title: title(item) });
    made.append(thumb(item, ""), element("span", {}, ...words));
    return made;
  }

  function tell(i, j) {
    const side = (item) => element("figure", {}, thumb(item, "large"), element("figcaption", {}, title(item), element("br", {}), ...verdict(item)));
    const value = element("p", { class: "value" }, `k = ${number(matrix.value(i, j))}`);
    $("pair").replaceChildren(value, element("div", { class: "two" }, side(i), side(j)));
  }

  function choose(item, scroll) {
    const shown = item < count;
    const words = shown ? [] : [element("p", { class: "note" }, "This image is not in the matrix, which has some training images only.")];
    const head = element("div", { class: "chosen" }, thumb(item, "large"), element("div", {}, title(item), element("br", {}), ...verdict(item)));
    const near = shown ? neighbours[item].map((other) => {
      const same = !classes.length || items.truth[other] === items.truth[item];
      const name = element("span", same ? {} : { class: "other" }, `${same ? "" : "≠ "}${label(items.truth[other])}`);
      return example(other, name, element("br", {}), matrix ? number(matrix.value(item, other)) : "");
    }) : [];
    $("nearest").replaceChildren(head, ...words, element("div", { class: "examples" }, ...near));
    if (shown) {
      chosen = item;
      $("chosen").value = items.row[item];
      if (view && $("order").value === "near") arrange();
    }
    if (scroll) $("neighbours").scrollIntoView();
  }

  function arrange() {
    const kind = $("order").value;
    const rows = Array.from({ length: count }, (_, i) => i);
    const by = (...keys) => rows.sort((a, b) => keys.reduce((found, key) => found || key(a) - key(b), 0) || a - b);
    const truth = (i) => items.truth[i];
    const guess = (i) => items.guess[i];
    const own = (i) => items.own[i];
    const far = (i) => (i === chosen ? -Infinity : matrix.value(i, i) - 2 * matrix.value(i, chosen));
    const keys = { class: [truth], hard: classes.length ? [truth, own] : [own], guess: [guess, truth], near: [far], given: [] };
    by(...keys[kind]);
    const group = !classes.length ? null : { class: truth, hard: truth, guess }[kind];
    view.arrange(rows, group ? runs(rows, group) : []);
  }

  function runs(rows, group) {
    const found = [];
    rows.forEach((row, place) => {
      const last = found.at(-1);
      if (last && last.code === group(row)) last.end = place + 1;
      else found.push({ code: group(row), name: label(group(row)), start: place, end: place + 1 });
    });
    return found;
  }

  function showCell(button) {
    const { truth, guess, test } = button.dataset;
    for (const other of document.querySelectorAll(".confusion [aria-pressed]")) other.removeAttribute("aria-pressed");
    button.setAttribute("aria-pressed", "true");
    const mine = items.row.map((_, item) => item).filter((item) =>
      items.truth[item] === Number(truth) && items.guess[item] === Number(guess) && items.test[item] === Number(test));
    mine.sort((a, b) => items.sure[b] - items.sure[a]);
    const all = Number(button.textContent || 0);
    const shown = mine.slice(0, most);
    const words = `${label(truth)} predicted as ${label(guess)}: ${all}${shown.length < all ? `, ${shown.length} shown` : ""}`;
    const list = shown.map((item) => example(item, share(items.sure[item])));
    $("cell").replaceChildren(element("h3", {}, words), element("div", { class: "examples" }, ...list));
  }

  // Arrow keys move between the cells of a confusion table.
  function moveCell(event) {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const cell = event.target.closest("td");
    if (!by || !cell) return;
    const row = cell.closest("tbody").rows[cell.parentElement.sectionRowIndex + by[0]];
    const next = row && row.cells[cell.cellIndex + by[1]] && row.cells[cell.cellIndex + by[1]].querySelector("button");
    if (next) next.focus();
    event.preventDefault();
  }

  function chooseRow() {
    const item = items.row.slice(0, count).indexOf(Number($("chosen").value));
    if (item >= 0) return choose(item);
    $("nearest").replaceChildren(element("p", { class: "note" }, "This row is not in the matrix, which has some training rows only."));
  }

  document.addEventListener("click", (event) => {
    const picked = event.target.closest("[data-item]");
    if (picked) return choose(Number(picked.dataset.item), true);
    const cell = event.target.closest(".confusion button");
    if (cell) showCell(cell);
  });
  for (const table of document.querySelectorAll(".confusion")) table.addEventListener("keydown", moveCell);
  $("chosen").max = Math.max(...items.row.slice(0, count));
  $("chosen").addEventListener("change", chooseRow);
  $("before").addEventListener("click", () => choose((chosen + count - 1) % count));
  $("after").addEventListener("click", () => choose((chosen + 1) % count));
  $("random").addEventListener("click", () => choose(Math.floor(Math.random() * count)));
  choose(0);

  const { colours, darkest, lightest } = data.matrix;
  $("low").textContent = `≤ ${number(darkest)}`;
  $("high").textContent = `≥ ${number(lightest)}`;
  const stops = colours.filter((_, place) => place % 15 === 0).map((colour) => `rgb(${colour.join(" ")})`);
  $("scale").style.background = `linear-gradient(90deg, ${stops.join(", ")})`;

  readMatrix($("matrix-values").textContent, data.matrix).then((found) => {
    matrix = found;
    view = showMatrix($("canvas"), matrix, colours, tell, (item) => choose(item));
    $("order").addEventListener("change", arrange);
    $("closer").addEventListener("click", () => view.zoom(1.5));
    $("farther").addEventListener("click", () => view.zoom(1 / 1.5));
    $("whole").addEventListener("click", () => view.whole());
    arrange();
    choose(chosen);
    document.documentElement.dataset.ready = "true";
  }).catch((error) => {
    $("pair").replaceChildren(element("p", { class: "note" }, `This browser cannot read the matrix: ${error.message}`));
  });
})();
