// Keeps the part of a page that changes true: asks the server for it, and takes over what has changed.
//
// `#live` says where (data-url) and when again (data-poll, in seconds; empty when nothing will change any more). It tells
// others by an event `answer` what the server said, by `silence` that it said nothing, by `changed` that a part is new;
// an event `ask` makes it ask at once.

const PATIENCE = 8000; // milliseconds for one answer
const RETRY = 5; // seconds, after none

const live = document.getElementById("live");
const offline = document.getElementById("offline");
const announcer = document.getElementById("announcer");
const tabs = new BroadcastChannel("labsite"); // of this browser; other devices find out at their next question
const rests = "rests" in live.dataset; // asks nothing in a tab that nobody sees

let poll = seconds(live.dataset.poll);
let questions = 0;
let timer;

function seconds(text) {
  return text === "" ? null : Number(text);
}

// The last question counts: when a computer wakes up, the answer to one from before its sleep is as good as none.
async function ask() {
  clearTimeout(timer);
  if (poll === null || (rests && document.hidden)) return;
  const question = ++questions;
  try {
    const told = await answer();
    if (question !== questions) return;
    take(told);
    offline.hidden = true;
    again(poll);
  } catch {
    if (question !== questions) return;
    offline.hidden = false;
    tell("silence");
    again(RETRY);
  }
}

async function answer() {
  const sent = performance.now();
  const response = await fetch(live.dataset.url, {
    cache: "no-store",
    redirect: "manual",
    signal: AbortSignal.timeout(PATIENCE),
  });
  // Logged out, or what was here is not ours any more: the page itself says it best.
  if (response.type === "opaqueredirect" || response.status === 404) location.reload();
  if (!response.ok) throw new Error(response.status);
  const told = await response.json();
  return { ...told, delay: (performance.now() - sent) / 2 };
}

function take(told) {
  render(told.html);
  poll = told.poll;
  tell("answer", told);
}

function again(after) {
  if (after !== null) timer = setTimeout(ask, after * 1000);
}

function tell(what, detail) {
  live.dispatchEvent(new CustomEvent(what, { bubbles: true, detail }));
}

// --- the fragment ---

const known = new Map(); // what the server last sent of each part

// The fragment without what differs in every answer (the time, the masked CSRF token) and without what site.js adds.
function essence(part) {
  const copy = part.cloneNode(true);
  for (const changing of copy.querySelectorAll("#countdown, input[name=csrfmiddlewaretoken], .copy")) changing.remove();
  for (const box of copy.querySelectorAll(".command")) box.replaceWith(...box.childNodes);
  return copy.outerHTML;
}

function parts(root) {
  return [...root.querySelectorAll("[data-part]")];
}

function remember(part) {
  known.set(part.dataset.part, essence(part));
}

function names(root) {
  return parts(root)
    .map((part) => part.dataset.part)
    .join(" ");
}

function headline() {
  return document.getElementById("headline")?.textContent.trim();
}

function render(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const before = headline();
  if (names(template.content) === names(live)) replaceChanged(template.content);
  else replaceAll(template.content);
  const now = headline();
  if (now && now !== before) announcer.textContent = now;
}

// Only what has changed, so that a selection, the focus and a screen reader's place stay where they are.
function replaceChanged(content) {
  for (const part of parts(content)) {
    if (known.get(part.dataset.part) === essence(part)) continue;
    remember(part);
    const focused = document.activeElement?.id;
    live.querySelector(`[data-part="${part.dataset.part}"]`).replaceWith(part);
    if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
    tell("changed");
  }
}

function replaceAll(content) {
  parts(content).forEach(remember);
  live.replaceChildren(content);
  tell("changed");
}

parts(live).forEach(remember);
live.addEventListener("ask", ask);
document.addEventListener("visibilitychange", () => document.hidden || ask());
window.addEventListener("pageshow", (event) => event.persisted && ask());
window.addEventListener("online", ask);
tabs.addEventListener("message", ask);
tabs.postMessage("a page was loaded: perhaps a form did something"); // no loop: an answer is not a page
ask(); // the page may come from the browser's store, with an old time in it
