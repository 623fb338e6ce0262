
(function () {
  "use strict";

  const $ = (id) => document.getElementById(id);
  const parse = (id) => JSON.parse($(id).textContent);
  let health = parse("health");
  let past = parse("history");
  let paused = false;

  // Numbers.
  const whole = new Intl.NumberFormat("en");
  function bytes(n) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
    return (unit === 0 ? whole.format(n) : n.toFixed(n < 10 ? 2 : 1)) + " " + units[unit];
  }
  const percent = (share) => Math.round(share * 100) + " %";
  function duration(seconds) {
    const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    const first = parts.findIndex(([size]) => seconds >= size);
    if (first < 0) { return "0 s"; }
    return parts.slice(first, first + 2).map(([size, name], i) => {
      const n = Math.floor(i === 0 ? seconds / size : (seconds % parts[first][0]) / size);
      return n > 0 ? n + " " + name : "";
    }).join(" ").trim();
  }
  const inBytes = new Set(["inflightBytes", "maxInflightBytes", "queuedBytes", "effectiveCeiling"]);

  // The document: text goes in as text, never as markup.
  function element(name, attributes, ...children) {
    const e = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) { e.setAttribute(key, value); }
    e.append(...children);
    return e;
  }
  function drawing(name, attributes, ...children) {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) { e.setAttribute(key, value); }
    e.append(...children);
    return e;
  }
  function show(e, value, text) {
    e.setAttribute("data-value", value);
    if (e.textContent !== text) { e.textContent = text; }
  }
  function field(name, value, text) {
    const e = element("dd", { "data-field": name });
    show(e, value, text === undefined ? whole.format(value) : text);
    return e;
  }
  const term = (label, dd) => element("div", {}, element("dt", {}, label), dd);

  function renderFields() {
    for (const e of document.querySelectorAll("[data-field]:not(#clusters *)")) {
      const path = e.getAttribute("data-field").split(".");
      const value = path.reduce((at, key) => (at === undefined || at === null ? undefined : at[key]), health);
      if (typeof value === "number") {
        show(e, value, inBytes.has(path[path.length - 1]) ? bytes(value) : whole.format(value));
      } else {
        show(e, value === undefined ? "" : value, String(value === undefined ? "" : value));
      }
    }
    $("uptime").textContent = duration(health.uptimeSeconds);
    document.documentElement.setAttribute("data-time", health.time);
  }

  function renderBudget() {
    const a = health.chatAdmission;
    const share = a.maxInflightBytes > 0 ? Math.min(1, a.inflightBytes / a.maxInflightBytes) : 0;
    const bar = $("budget");
    bar.className = "bar" + (share >= 0.95 ? " bad" : share >= 0.8 ? " warn" : "");
    bar.setAttribute("aria-valuemax", a.maxInflightBytes);
    bar.setAttribute("aria-valuenow", a.inflightBytes);
    bar.setAttribute("aria-valuetext", bytes(a.inflightBytes) + " of " + bytes(a.maxInflightBytes) + ", " + percent(share));
    $("budget-fill").style.width = share * 100 + "%";
    const levels = { normal: "good", high: "warn", critical: "bad" };
    $("pressure").className = "pill " + (levels[a.pressureSeverity] || "");
    $("pressure-why").textContent = a.pressureReason
      ? a.pressureReason + " is " + a.pressureValue.toPrecision(3) + ", threshold " + a.pressureThreshold
      : "Every signal is under its threshold.";
    $("status").className = "pill " + (health.status === "ok" ? "good" : "warn");
    $("config-error").hidden = !health.config.lastError;
    $("config-error").textContent = health.config.lastError ? "Last reload failed: " + health.config.lastError : "";
    const traffic = health.traffic, unseen = traffic.unseenClusters || [];
    $("without-tenant").hidden = !traffic.requestsWithoutTenant;
    $("without-tenant").textContent = whole.format(traffic.requestsWithoutTenant) + " requests had no tenant: no source of tenant.sources had a value.";
    $("unseen-clusters").hidden = unseen.length === 0;
    $("unseen-clusters").textContent = "No request yet for: " + unseen.join(", ");
  }

  // Charts: lines over the points that are kept, the newest at the right.
  function line(className, values, top) {
    const step = 300 / (past.points - 1);
    const points = values.map((v, i) => ((past.points - values.length + i) * step).toFixed(1) + "," + (58 - 56 * Math.min(1, v / top)).toFixed(1));
    return drawing("polyline", { class: className, points: points.join(" ") });
  }
  function chart(name, description, ...lines) {
    return drawing("svg", { class: name, viewBox: "0 0 300 60", preserveAspectRatio: "none", role: "img", "aria-label": description }, ...lines);
  }
  const minutes = () => duration(Math.round(past.every * past.points));

  // What a cluster that shares its limit knows of its group.
  function shared(g) {
    if (!g) { return []; }
    const others = (g.parts || []).map((p) => p.share).join(", ");
    return [term("Shared limit", field("shareLimit", g.limit, g.stale ? "alone: the store does not answer" :
      whole.format(g.limit) + " of " + g.members + " members; " + whole.format(g.share) + " here" + (others ? ", " + others + " elsewhere" : "")))];
  }

  function card(name, s) {
    const points = past.clusters[name] || [];
    const of = (key) => points.map((p) => p[key]);
    const top = Math.max(1, ...of("limit"), ...of("active"));
    const limits = of("limit");
    const queuedCost = s.queuedCost + s.laneQueuedCost + s.virtualQueuedCost;
    const queuedCount = s.queuedCount + s.laneQueuedCount + s.virtualQueuedCount;
    const c = element("article", { class: "card", "data-cluster": name },
      element("header", {}, element("h3", {}, name), element("span", { class: "pill" }, s.mode)));
    c.append(element("dl", {},
      term("Limit", field("currentLimit", s.currentLimit)),
      term("Active cost", field("activeCost", s.activeCost)),
      term("Active", field("activeCount", s.activeCount, s.maxConcurrent ? s.activeCount + " of " + s.maxConcurrent : undefined)),
      term("Utilisation", field("utilization", s.utilization, percent(s.utilization))),
      term("Queued cost", field("queuedCost", queuedCost)),
      term("Queued", field("queuedCount", queuedCount)),
      term("Lanes", field("laneCount", s.laneCount)),
      ...shared((health.sharing || {})[name]),
      term("Refused by lanes", field("rejectedCount", s.rejectedCount)),
      term("First token seen in", field("signal", s.signal, s.signal ? s.signal + (s.headersAtOnce ? ", which come at once: says nothing" : "") : "no response yet")),
      term("Last step", field("lastReason", s.lastReason, s.lastReason || "none"))));
    if (s.levels.length > 0) {
      c.append(element("p", { class: "levels" }, "Priority levels: " + s.levels.map((l) =>
        l.name + " (" + percent(l.share) + "): " + l.activeCount + " run, " + l.queuedCount + " wait").join("; ") + "."));
    }
    if (points.length > 1) {
      c.append(
        element("figure", {},
          chart("", "Limit over the last " + minutes() + ": now " + s.currentLimit + ", between " + Math.min(...limits) + " and " + Math.max(...limits) +
            ". Active cost: now " + s.activeCost + ".", line("first", limits, top), line("second", of("active"), top)),
          element("figcaption", {}, element("span", { class: "key first" }, "limit"), " and ", element("span", { class: "key second" }, "active cost"), ", " + minutes())),
        element("figure", {},
          chart("low", "Utilisation over the last " + minutes() + ": now " + percent(s.utilization), line("first", of("utilization"), 1)),
          element("figcaption", {}, "utilisation, 0 to 100 %")));
    }
    return c;
  }

  function renderClusters() {
    const most = 50;
    const names = Object.keys(health.adaptiveAdmission).sort();
    $("clusters").replaceChildren(...names.slice(0, most).map((name) => card(name, health.adaptiveAdmission[name])));
    $("clusters-note").textContent = names.length === 0 ? "No cluster has had a request yet."
      : names.length > most ? "The first " + most + " of " + names.length + " by name." : "";
  }

  // A table is drawn anew only when it says something new, so that what is selected in it stays selected.
  const drawn = {};
  function rows(id, list, columns, none) {
    const content = JSON.stringify(list);
    if (drawn[id] === content) { return; }
    drawn[id] = content;
    const cells = (row) => columns.map(([value, className]) => element("td", className ? { class: className } : {}, String(value(row))));
    const made = list.map((row) => element("tr", {}, ...cells(row)));
    if (made.length === 0) {
      made.push(element("tr", {}, element("td", { class: "empty", colspan: columns.length }, none)));
    }
    $(id).replaceChildren(...made);
  }

  function renderTables() {
    const lanes = health.chatAdmission.lanes.map((l) => ({ cluster: "(bytes)", id: l.key, queuedCount: l.waiting, queuedCost: "" }));
    for (const [cluster, s] of Object.entries(health.adaptiveAdmission)) {
      for (const l of s.laneTenants) { lanes.push({ cluster: cluster, ...l }); }
    }
    lanes.sort((a, b) => b.queuedCount - a.queuedCount);
    rows("lanes", lanes.slice(0, 50), [
      [(l) => l.cluster], [(l) => l.id, "code"], [(l) => whole.format(l.queuedCount), "number"], [(l) => l.queuedCost, "number"],
    ], "Nobody waits.");
    rows("refusals", health.recentRefusals || [], [
      [(r) => r.at.slice(11, 19)], [(r) => r.cluster], [(r) => r.reason, "code"], [(r) => r.lane || "_default", "code"],
      [(r) => whole.format(r.bytes), "number"], [(r) => whole.format(r.waitMs) + " ms", "number"], [(r) => r.traceId || "", "code"],
    ], "Nothing was refused.");
    const leases = health.leases || { pools: {} };
    rows("pools", Object.entries(leases.pools || {}).map(([name, p]) => ({ name: name, ...p })), [
      [(p) => p.name], [(p) => p.status + (p.error ? ": " + p.error : "")], [(p) => p.breaker],
      [(p) => p.connections, "number"], [(p) => p.active, "number"], [(p) => p.cooldown, "number"],
    ], "No pool is configured.");
    $("store").textContent = leases.store ? "Store: " + leases.store : "";
  }

  function render() {
    renderFields();
    renderBudget();
    renderClusters();
    renderTables();
  }

  function addPoint(point) {
    const next = {};
    for (const [name, p] of Object.entries(point)) {
      next[name] = (past.clusters[name] || []).concat(p).slice(-past.points);
    }
    past.clusters = next;
  }

  const live = (text, className) => { $("live").textContent = text; $("live").className = className; };

  function follow() {
    if (new URLSearchParams(location.search).get("live") === "off") {
      $("pause").hidden = true;
      live("Still", "label");
      return;
    }
    const events = new EventSource("/events");
    events.addEventListener("history", (e) => { past = JSON.parse(e.data); });
    events.addEventListener("point", (e) => addPoint(JSON.parse(e.data)));
    events.addEventListener("health", (e) => {
      health = JSON.parse(e.data);
      if (!paused) {
        if ($("live").textContent !== "Live") { live("Live", "good"); }
        render();
      }
    });
    events.addEventListener("error", () => live("Not connected, trying again", "bad"));
  }

  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    if (paused) { live("Paused", "warn"); } else { live("Live", "good"); render(); }
  });

  render();
  follow();
})();
