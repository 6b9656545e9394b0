// Unpacks plotly.js and the figures, draws them one after the other, and makes tables sortable.
// <html data-figures> tells how it went: the number of figures drawn, or "failed".
(() => {
  "use strict";
  const nonce = document.currentScript.nonce;
  const root = document.documentElement;
  const plots = [...document.querySelectorAll(".plot")];

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function template() {
    const axis = {
      gridcolor: css("--grid"), linecolor: css("--axis"), tickcolor: css("--axis"), zerolinecolor: css("--grid"),
      ticks: "outside", ticklen: 4, showline: true, automargin: true,
      title: { standoff: 8, font: { size: 12 } }, tickfont: { size: 11 }, minorloglabels: "complete",
    };
    return {
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: css("--font"), size: 12, color: css("--text") },
        margin: { l: 56, r: 14, t: 30, b: 44 },
        xaxis: axis, yaxis: axis,
        separators: ".,", hovermode: "closest",
        hoverlabel: {
          bgcolor: css("--surface"), bordercolor: css("--axis"), align: "left",
          font: { family: css("--font"), size: 12, color: css("--text") },
        },
        legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { size: 11 } },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--text") },
      },
    };
  }

  const config = {
    responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "", scrollZoom: false, showTips: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };

  async function unpack(id) {
    const text = atob(document.getElementById(id).textContent);
    const bytes = Uint8Array.from(text, (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  async function drawAll() {
    const source = document.createElement("script");
    source.nonce = nonce;
    source.textContent = await unpack("plotly-js");
    document.head.append(source); // runs here and now
    source.remove();
    const figures = JSON.parse(await unpack("figures"));
    for (const [i, { data, layout }] of figures.entries()) {
      await Plotly.newPlot(plots[i], data, { ...layout, template: template() }, config);
      plots[i].classList.add("drawn");
      await new Promise((resolve) => setTimeout(resolve)); // the page stays responsive meanwhile
    }
    root.dataset.figures = String(figures.length);
  }

  function failed(error) {
    root.dataset.figures = "failed";
    const note = document.createElement("p");
    note.className = "notice";
    note.textContent = typeof DecompressionStream === "undefined"
      ? "The plots cannot be shown: this browser is older than 2023 and cannot unpack them."
      : `The plots cannot be shown: ${error}`;
    document.querySelector("main").prepend(note);
    console.error(error);
  }

  const themed = () => plots.filter((div) => div.data).map((div) => Plotly.relayout(div, { template: template() }));
  if (plots.length) {
    drawAll().catch(failed);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
  } else {
    root.dataset.figures = "0";
  }

  for (const button of document.querySelectorAll("button.log")) {
    button.addEventListener("click", () => {
      const div = button.closest(".figure").querySelector(".plot");
      if (!div.data) return;
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      const changes = {};
      for (const axis of button.dataset.axis) {
        changes[`${axis}axis.type`] = on ? "log" : "linear";
        changes[`${axis}axis.autorange`] = true;
      }
      Plotly.relayout(div, changes);
    });
  }

  // Legends that sections share.
  const keys = [...document.querySelectorAll(".legend button")];
  const isShown = (key) => key.getAttribute("aria-pressed") === "true";
  const withKeys = plots.filter((div) => div.closest("section").querySelector(".legend"));

  function show(names) {
    for (const key of keys) key.setAttribute("aria-pressed", String(names.has(key.dataset.name)));
    for (const div of withKeys.filter((div) => div.data)) {
      Plotly.restyle(div, { visible: div.data.map((trace) => names.has(trace.name)) });
    }
  }

  for (const key of keys) {
    const name = key.dataset.name;
    const shown = () => new Set(keys.filter(isShown).map((other) => other.dataset.name));
    key.addEventListener("click", () => {
      const names = shown();
      if (!names.delete(name)) names.add(name);
      show(names);
    });
    key.addEventListener("dblclick", () => { // after two clicks, which leave all as it was
      const names = shown();
      const alone = names.size === 1 && names.has(name);
      show(new Set(alone ? keys.map((other) => other.dataset.name) : [name]));
    });
  }

  // On paper: one column, light colours, plots as wide as the page.
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    for (const div of plots.filter((div) => div.data)) {
      Plotly.relayout(div, { template: template(), width: div.clientWidth, autosize: false });
    }
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    for (const div of plots.filter((div) => div.data)) {
      Plotly.relayout(div, { template: template(), width: null, autosize: true });
    }
  });

  const compare = new Intl.Collator("en", { numeric: true }).compare;
  for (const table of document.querySelectorAll("table.sortable")) {
    const headers = [...table.tHead.rows[0].cells];
    headers.forEach((header, column) => header.firstElementChild.addEventListener("click", () => {
      const descending = header.getAttribute("aria-sort") !== "descending";
      for (const other of headers) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const keyed = [...table.tBodies[0].rows].map((row) => [row.cells[column], row]);
      keyed.sort(([a], [b]) => {
        const bySign = descending ? -1 : 1;
        const x = a.dataset.sort, y = b.dataset.sort;
        if (x !== undefined && y !== undefined) return bySign * (x - y);
        if (x !== y) return x === undefined ? 1 : -1; // cells without a value stay below
        return bySign * compare(a.textContent, b.textContent);
      });
      table.tBodies[0].append(...keyed.map(([, row]) => row));
    }));
  }
})();
