"use strict";
// What every report does: switch between light and dark, and sort tables.

(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;

  function show() {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${dark() ? "light" : "dark"} colours`);
    button.setAttribute("aria-pressed", String(dark()));
    document.dispatchEvent(new Event("themechange"));
  }

  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
})();

(() => {
  // The first number in a cell: "1,234", "3e9", "-0.5 %"; cells without one sort as text, after all numbers.
  function key(cell) {
    const found = cell.textContent.replaceAll(",", "").match(/[-+]?\d+(\.\d+)?(e[-+]?\d+)?/i);
    return found ? Number(found[0]) : null;
  }

  function compare(a, b, asText) {
    if (!asText && a.number !== null && b.number !== null) return a.number - b.number;
    if (!asText && (a.number === null) !== (b.number === null)) return a.number === null ? 1 : -1;
    return a.text.localeCompare(b.text, undefined, { numeric: true });
  }

  function sort(table, column) {
    const heads = [...table.tHead.rows[0].cells];
    const descending = heads[column].getAttribute("aria-sort") === "ascending";
    const asText = column === 0;
    const rows = [...table.tBodies[0].rows].map((row) => {
      const cell = row.cells[column];
      return { row, text: cell ? cell.textContent : "", number: cell ? key(cell) : null };
    });
    rows.sort((a, b) => (descending ? -1 : 1) * compare(a, b, asText));
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
    table.tBodies[0].append(...rows.map((entry) => entry.row));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) =>
      head.querySelector("button").addEventListener("click", () => sort(table, column)));
  }
})();
