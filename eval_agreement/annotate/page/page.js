"use strict";
const form = document.querySelector("form");
const status = document.getElementById("status");
const keys = document.getElementById("keys");
const asks = form ? [...form.querySelectorAll("[data-ask]")] : [];
let sending = false, seen = 0, since = document.hidden ? null : performance.now();

document.addEventListener("visibilitychange", () => {
  if (document.hidden && since !== null) { seen += performance.now() - since; since = null; }
  else if (!document.hidden && since === null) since = performance.now();
});
const seconds = () => (seen + (since === null ? 0 : performance.now() - since)) / 1000;
const say = (name, error) => { status.textContent = status.dataset[name].replace("{error}", error); };
const written = (ask) => ask.querySelector("textarea");
const answered = (ask) => (written(ask) ? written(ask).value.trim() : ask.querySelector("input:checked"));
const wanted = (ask) => {
  const at = (ask.dataset.after || "").lastIndexOf("=");
  return at < 0 || form.elements["choice " + ask.dataset.after.slice(0, at)].value === ask.dataset.after.slice(at + 1);
};
const show = () => asks.forEach((ask) => { ask.hidden = !wanted(ask); });
const edited = () => [...form.querySelectorAll("textarea")].some((text) => text.value !== text.defaultValue);
const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

async function send() {
  form.elements.seconds.value = seconds().toFixed(1);
  const body = new URLSearchParams(new FormData(form));
  say("saving");
  for (let wait = 500; ; wait = Math.min(2 * wait, 5000)) {
    let reply;
    try {
      reply = await fetch(form.action, { method: "POST", body, redirect: "error" });
    } catch { reply = null; }
    if (reply && reply.status < 500) {
      const said = await reply.json();
      if (reply.status === 409 && edited()) { sending = false; say("conflict"); return; }
      if (reply.ok || reply.status === 409) { location.assign(said.next); return; }
      sending = false;
      say("failed", said.error);
      return;
    }
    say("lost");
    await pause(wait);
  }
}

function choose(key) {
  const ask = asks.find((one) => one.contains(document.activeElement)) || asks.find((one) => !one.hidden && !answered(one)) || asks[0];
  const input = ask && [...ask.querySelectorAll("input")].find((one) => one.dataset.key === key);
  if (!input) return false;
  input.checked = true;
  show();
  const next = asks.slice(asks.indexOf(ask) + 1).find((one) => !one.hidden && !answered(one));
  (next ? next.querySelector("input, textarea") : input).focus();
  if (next) next.scrollIntoView({ block: "nearest" });
  return true;
}

const actions = {
  Enter: () => form.requestSubmit(),
  r: () => form.elements.reason.focus(),
  s: () => form.elements.skipped.focus(),
  f: () => form.elements.broken.click(),
  i: () => document.querySelectorAll(".image").forEach((one) => one.click()),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const field = event.target.matches("textarea, input:not([type=radio], [type=checkbox])");
  const undo = document.getElementById("undo");
  // An open list of keys takes no label: the browser closes it on Escape, and keeps the focus in it.
  if (keys.open) return;
  if (field && event.key === "Escape") event.target.blur();
  else if (field || (event.key === "Enter" && event.target.matches("button, a, summary"))) return;
  else if (event.key === "?" || event.key === "？") { event.preventDefault(); keys.showModal(); }
  else if (event.key === "u" && undo) undo.click();
  else if (!form || event.repeat) return;
  else if (choose(event.key)) event.preventDefault();
  else if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
});

document.getElementById("help").addEventListener("click", () => keys.showModal());
document.getElementById("close").addEventListener("click", () => keys.close());
if (form) {
  show();
  form.addEventListener("change", show);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (sending) return;
    if (!form.elements.skipped.value.trim() && !form.elements.broken.checked && !asks.every((ask) => ask.hidden || answered(ask))) { say("incomplete"); return; }
    sending = true;
    send();
  });
  document.querySelectorAll(".image").forEach((button) => button.addEventListener("click", () =>
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"))));
  window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
}
