// Draws the figures in the colours of the page, and again when the reader changes between light and dark.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  // A fixed list: by itself Plotly adds a button that sends the figure to its makers.
  const BUTTONS = ["toImage", "zoom2d", "pan2d", "resetScale2d"];
  const settings = { responsive: true, displaylogo: false, modeBarButtons: [BUTTONS] };

  function colored(value, style) {
    if (Array.isArray(value)) return value.map((each) => colored(each, style));
    if (value === null || typeof value !== "object") return value;
    const copy = {};
    for (const [key, each] of Object.entries(value)) {
      const variable = /color$/.test(key) && typeof each === "string" && each.startsWith("--");
      copy[key] = variable ? style.getPropertyValue(each).trim() : colored(each, style);
    }
    return copy;
  }

  function axis(stated, style) {
    const line = style.getPropertyValue("--line").trim();
    const title = { ...stated.title, font: { size: 13 }, standoff: 10 };
    return { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true, ...stated, title };
  }

  function layout(stated, style) {
    const text = style.getPropertyValue("--text").trim();
    const panel = style.getPropertyValue("--panel").trim();
    const quiet = style.getPropertyValue("--quiet").trim();
    const whole = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 13, color: text },
      barmode: "group",
      bargap: 0.3,
      margin: { l: 60, r: 16, t: 12, b: 48 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: text },
      hoverlabel: { bgcolor: panel, font: { color: text } },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      ...colored(stated, style),
    };
    for (const name of Object.keys(whole)) {
      if (/^[xy]axis\d*$/.test(name)) whole[name] = axis(whole[name], style);
    }
    return whole;
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    figures.forEach((figure, number) => {
      const place = document.getElementById("figure-" + number);
      Plotly.react(place, colored(figure.data, style), layout(figure.layout, style), settings);
    });
  }

  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
