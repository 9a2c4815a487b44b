// The cost calculator: counts the work of an architecture as tangentless.graph does, and divides by measured rates.
// It needs no network. tests/test_site.py runs it against the graphs of the package.
"use strict";

const Cost = (() => {
  const fail = (text) => { throw new Error(text); };

  // Splits at a separator outside brackets; an empty separator means white space.
  function split(text, separator) {
    const parts = [""];
    let depth = 0;
    for (const sign of text) {
      depth += (sign === "(") - (sign === ")");
      const ends = separator ? sign === separator : /\s/.test(sign);
      if (ends && depth === 0) parts.push("");
      else parts[parts.length - 1] += sign;
    }
    if (depth !== 0) fail("a bracket is not closed");
    return parts.map((part) => part.trim()).filter((part) => part || separator);
  }

  // Text to layers: {kind: "window" | "pool" | "embed" | "sum", ...}.
  function parse(text, data) {
    const known = data.named[text.trim().toLowerCase()] || text.toLowerCase();
    return split(known, "").map((word) => parseLayer(word, data));
  }

  function parseLayer(word, data) {
    const match = /^([a-z]+)(\d+)?(?:\((.*)\))?$/s.exec(word) || fail(`cannot read “${word}”`);
    const [, name, digits, inside] = match;
    if (name === "sum" || name === "residual") {
      const branches = name === "residual" ? ["identity", inside] : split(inside || "", "|");
      return { kind: "sum", branches: branches.map((branch) => parseBranch(branch, data)) };
    }
    if (data.nonlinearities.includes(name)) return { kind: "embed", name };
    if (name === "globalpool") return { kind: "pool", global: true };
    if (name === "halfpool") return { kind: "pool", half: true };
    if (!["conv", "patch", "pool"].includes(name)) fail(`“${name}” is no layer of this calculator`);
    const options = {};
    for (const part of split(inside || "", ",").filter(Boolean)) {
      const [key, value] = part.includes("=") ? part.split("=").map((side) => side.trim()) : ["size", part];
      options[key] = Number(value);
    }
    const size = digits ? Number(digits) : options.size || (name === "conv" ? 3 : 2);
    if (name === "conv") return { kind: "window", size, stride: options.stride || 1, dilation: options.dilation || 1 };
    if (name === "patch") return { kind: "window", size, stride: size, dilation: 1, disjoint: true };
    return { kind: "pool", size, stride: options.stride || size, disjoint: !options.stride };
  }

  function parseBranch(text, data) {
    const weighted = /^\s*[^\s*|()]+\s*\*(.*)$/s.exec(text);
    const layers = (weighted ? weighted[1] : text).trim();
    return layers === "identity" || !layers ? [] : parse(layers, data);
  }

  // Windows of a layer along an axis: how many, how long, how far apart.
  function windows(layer, length) {
    if (layer.global) return { size: length, count: 1, stride: length, dilation: 1 };
    if (layer.half) return windows({ kind: "pool", size: Math.ceil(length / 2), stride: 1 }, length);
    if (layer.disjoint && length % layer.size) fail(`windows of ${layer.size} do not divide an axis of ${length}`);
    if (layer.kind === "window" && !layer.disjoint) {
      if (layer.size % 2 === 0) fail(`conv needs an odd size, not ${layer.size}`);
      return { ...layer, count: Math.ceil(length / layer.stride) };
    }
    if (layer.size > length) fail(`a window of ${layer.size} does not fit an axis of ${length}`);
    return { ...layer, dilation: 1, count: Math.floor((length - layer.size) / layer.stride) + 1 };
  }

  // Nodes in the order of computation, each with its grid, its sources and its windows.
  function build(layers, grid, rank) {
    const nodes = [{ grid, sources: [] }];
    function run(list, source) {
      for (const layer of list) {
        const before = nodes[source].grid;
        if (layer.kind === "sum") {
          const ends = layer.branches.map((branch) => run(branch, source));
          const grids = new Set(ends.map((end) => nodes[end].grid.join("×")));
          if (grids.size > 1) fail(`branches of a sum end on grids of ${[...grids].join(" and ")}`);
          nodes.push({ grid: nodes[ends[0]].grid, sources: ends });
        } else if (layer.kind === "embed") {
          nodes.push({ grid: before, sources: [source], embed: true });
        } else {
          if (rank === 0) fail("vectors have no positions for windows and pools");
          // Inputs of a lower rank have one position along the axes they lack.
          const axes = before.map((length, axis) =>
            axis < 2 - rank ? { size: 1, count: 1, stride: 1, dilation: 1 } : windows(layer, length));
          nodes.push({ grid: axes.map((one) => one.count), sources: [source], axes, pool: layer.kind === "pool" });
        }
        source = nodes.length - 1;
      }
      return source;
    }
    run(layers, 0);
    return nodes;
  }

  // Offsets between positions at which every node is needed, found from the last node backwards.
  function offsets(nodes) {
    const needed = nodes.map(() => [new Set(), new Set()]);
    needed[nodes.length - 1] = [new Set([0]), new Set([0])];
    for (let place = nodes.length - 1; place >= 0; place--) {
      const node = nodes[place];
      for (const source of node.sources) {
        for (const axis of [0, 1]) {
          const length = nodes[source].grid[axis];
          const keep = (u) => { if (Math.abs(u) < length) needed[source][axis].add(u); };
          for (const u of needed[place][axis]) {
            if (!node.axes) keep(u);
            else if (!node.pool) keep(u * node.axes[axis].stride);
            else {
              const { size, stride, dilation } = node.axes[axis];
              for (let d = 1 - size; d < size; d++) keep(u * stride + d * dilation);
            }
          }
        }
      }
    }
    return needed;
  }

  // Nonlinearities evaluated for one pair of images: Graph.elements.
  function elements(text, shape, data) {
    const grid = [...Array(3 - shape.length).fill(1), ...shape.slice(0, -1)];
    const nodes = build(parse(text, data), grid, shape.length - 1);
    const last = nodes[nodes.length - 1].grid;
    if (last[0] * last[1] !== 1) fail(`a ${last.join("×")} grid is left after the last layer; add globalpool`);
    const needed = offsets(nodes);
    const pairs = (place) => [0, 1].reduce((product, axis) => {
      let sum = 0;
      for (const u of needed[place][axis]) sum += nodes[place].grid[axis] - Math.abs(u);
      return product * sum;
    }, 1);
    let work = 0;
    nodes.forEach((node, place) => {
      if (node.embed && node.grid[0] * node.grid[1] !== 1) work += pairs(place);
    });
    return Math.max(work, pairs(0));
  }

  // What keeps an architecture off the fastest path, as names of measured rows.
  function features(text, shape, data) {
    const found = new Set();
    const carried = /(gaussian|polynomial)\S*\s+halfpool\s+globalpool/.test(text); // norms carry the weights of such a pool
    const walk = (layers) => layers.forEach((layer) => {
      if (layer.kind === "sum") { found.add("branches"); layer.branches.forEach(walk); }
      if (layer.kind === "window") {
        if (layer.dilation > 1) found.add("dilation");
        if (layer.stride > 1) found.add("stride");
        if (layer.size > 5) found.add("window7");
        else if (layer.size > 3) found.add("window5");
      }
      if (layer.kind === "pool" && !layer.global) {
        if (layer.half ? !carried : !layer.disjoint) found.add("overlap");
        else if (layer.size !== 2) found.add("pool");
      }
    });
    walk(parse(text, data));
    if (shape.length === 2) found.add("sequence");
    if (shape.length === 3 && Math.max(shape[0], shape[1]) > 32) found.add("large");
    if (shape[shape.length - 1] > 16) found.add("channels");
    return found;
  }

  // Elements a second, and the measured row the figure comes from.
  function rate(device, text, shape, data) {
    const name = text.trim().toLowerCase();
    const special = [...features(text, shape, data)].filter((feature) => device.special[feature]);
    if (!special.length) {
      if (device.exact[name]) return { rate: device.exact[name], row: name };
      const kind = /gaussian/.test(data.named[name] || name) && !/relu/.test(data.named[name] || name) ? "gaussian" : "relu";
      const [value, row] = device.plain[kind];
      return { rate: value, row };
    }
    const slowest = special.map((feature) => device.special[feature]).sort((a, b) => a[0] - b[0])[0];
    return { rate: slowest[0], row: slowest[1] };
  }

  // Pairs, seconds, memory and disk of the matrix of n images, and of predictions for m others.
  function estimate(asked, data) {
    const { text, shape, train, test, flips, devices } = asked;
    const work = elements(text, shape, data);
    const images = train + test;
    const pairs = (train * (train + 1) / 2 + train * test) * (flips ? 2 : 1);
    const pixels = shape.reduce((product, length) => product * length, 1);
    const rows = data.devices.map((device) => {
      const found = rate(device, text, shape, data);
      const vectors = shape.length === 1;
      const seconds = vectors ? null : pairs * work / found.rate / devices;
      const fits = 8 * train * train * 1.3 < device.memory;
      const solve = fits ? device.solve[1] * (train / device.solve[0]) ** 3 : null;
      return { device: device.name, unit: device.unit, row: found.row, seconds, hours: vectors ? null : seconds * devices / 3600, solve };
    });
    return {
      elements: work, pairs, rows,
      matrix: 8 * train * train, panel: 8 * train * test, imageMemory: 4 * images * pixels,
      disk: 8 * train * (train + 1) / 2 + images * pixels,
    };
  }

  function sayTime(seconds) {
    for (const [limit, unit, name] of [[1, 1e-3, "ms"], [120, 1, "s"], [7200, 60, "min"], [172800, 3600, "h"]])
      if (seconds < limit) return `${(seconds / unit).toPrecision(seconds < 10 * unit ? 2 : 3)} ${name}`.replace(/\.0 /, " ");
    const days = seconds / 86400;
    return days < 1000 ? `${days.toPrecision(days < 10 ? 2 : 3)} days` : `${Math.round(days / 365.25).toLocaleString("en")} years`;
  }

  function sayBytes(count) {
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let unit = 0;
    while (count >= 1000 && unit < units.length - 1) { count /= 1000; unit++; }
    return `${count < 10 && unit ? count.toFixed(1) : Math.round(count)} ${units[unit]}`;
  }

  function show(form, output, data) {
    const value = (name) => form.elements[name].value;
    const whole = (name) => Math.max(0, Math.round(Number(value(name)) || 0));
    const chosen = value("architecture");
    form.elements.text.disabled = chosen !== "";
    if (chosen) form.elements.text.value = data.named[chosen];
    try {
      const text = chosen || value("text");
      const image = [whole("height"), whole("width"), whole("channels")];
      if (image.some((length) => length < 1)) fail("height, width and channels are at least 1");
      const shape = image.slice(image[0] > 1 ? 0 : image[1] > 1 ? 1 : 2);
      const asked = { text, shape, train: whole("train"), test: whole("test"), flips: form.elements.flips.checked,
                      devices: Math.max(1, whole("devices")) };
      const found = estimate(asked, data);
      const number = (x) => x >= 1e15 ? x.toExponential(2) : Math.round(x).toLocaleString("en");
      const facts = [
        ["Work of one pair", `${number(found.elements)} elements`],
        ["Pairs", number(found.pairs)],
        ["Kernel matrix in memory", sayBytes(found.matrix) + ", solved in place"],
        ["Images in memory", `${sayBytes(found.imageMemory)} as float32`],
        ["Store on disk", `${sayBytes(found.disk)} with one triangle and images of bytes`],
      ];
      const rows = found.rows.map((row) => [
        row.device, row.seconds === null ? "a matrix product" : sayTime(row.seconds),
        row.hours === null ? "" : `${row.hours < 0.01 ? "< 0.01" : row.hours < 100 ? row.hours.toFixed(2) : number(row.hours)} ${row.unit}`,
        row.solve === null ? "conjugate gradients" : sayTime(row.solve), row.row,
      ]);
      const cell = (tag, content) => { const made = document.createElement(tag); made.textContent = content; return made; };
      const table = (head, body) => {
        const made = document.createElement("table");
        made.className = "table";
        if (head) made.createTHead().insertRow().append(...head.map((text) => cell("th", text)));
        const rows = made.createTBody();
        body.forEach((line) => rows.insertRow().append(...line.map((text, at) => cell(at ? "td" : "th", text))));
        const frame = document.createElement("div");
        frame.className = "cost-scroll";
        frame.append(made);
        return frame;
      };
      const several = asked.devices > 1 ? `matrix, on ${asked.devices}` : "matrix";
      output.replaceChildren(table(null, facts),
        table(["device", several, "in all", "solve, with leave-one-out", "rate measured on"], rows));
    } catch (error) {
      const line = document.createElement("p");
      line.className = "cost-error";
      line.textContent = error.message;
      output.replaceChildren(line);
    }
  }

  function start() {
    const form = document.getElementById("cost-form");
    if (!form) return;
    const data = window.TANGENTLESS_COSTS;
    const select = form.elements.architecture;
    Object.keys(data.named).forEach((name) => select.add(new Option(name, name)));
    select.add(new Option("your own text", ""));
    const update = () => show(form, document.getElementById("cost-output"), data);
    form.addEventListener("input", update);
    form.addEventListener("submit", (event) => event.preventDefault());
    update();
  }

  return { elements, estimate, features, start };
})();

if (typeof document !== "undefined") document.addEventListener("DOMContentLoaded", Cost.start);
if (typeof module !== "undefined") module.exports = Cost;
