// Ticks the countdown and keeps the session's page true.
//
// The time is the server's. The browser's clock only measures what has passed since the server last told its own, so it
// does not matter what it shows; when it jumps (a sleep, a correction) the server is asked at once.

const TICK = 1000;
const JUMP = 3000; // milliseconds between two ticks that cannot be a busy browser
const PATIENCE = 8000; // for one answer
const RETRY = 5; // seconds, after none
const SAY_AT = [600, 300, 60]; // seconds left

const live = document.getElementById("live");
const offline = document.getElementById("offline");
const announcer = document.getElementById("announcer");

let ahead = 0; // of the browser's clock: the server's time minus ours
let expires = 0;
let left = Infinity; // seconds, when last shown
let poll = live.dataset.poll === "" ? null : Number(live.dataset.poll); // seconds; null when it is over
let questions = 0;
let timer;
let lastTick = Date.now();
let ticker;

function readClock(root) {
  const clock = root.querySelector("#countdown");
  if (clock) {
    ahead = Number(clock.dataset.now) - Date.now();
    expires = Number(clock.dataset.expires);
  }
}

// --- the countdown ---

function tick() {
  const now = Date.now();
  if (Math.abs(now - lastTick - TICK) > JUMP) ask();
  lastTick = now;
  show();
}

function show() {
  const clock = document.getElementById("countdown");
  if (!clock) return;
  const before = left;
  left = Math.max(Math.ceil((expires - Date.now() - ahead) / 1000), 0);
  clock.textContent = digits(left);
  const passed = SAY_AT.find((mark) => before > mark && left <= mark && left > mark - 15);
  if (passed && before !== Infinity) say(live.getAttribute(`data-say-${passed}`));
  if (before > 0 && left === 0) ask();
}

function digits(total) {
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(total / 3600);
  const minutes = Math.floor(total / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(total % 60)}` : `${minutes}:${two(total % 60)}`;
}

function say(text) {
  announcer.textContent = text;
}

// --- the server ---

// The last question counts: when a computer wakes up, the answer to one from before its sleep is as good as none.
async function ask() {
  if (poll === null) return;
  clearTimeout(timer);
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
  // Logged out, or the session is not ours any more: the page itself says it best.
  if (response.type === "opaqueredirect" || response.status === 404) location.reload();
  if (!response.ok) throw new Error(response.status);
  const told = await response.json();
  return { ...told, delay: (performance.now() - sent) / 2 };
}

function take({ html, now, expires: until, poll: next, delay }) {
  render(html);
  ahead = now + delay - Date.now();
  expires = until;
  poll = next;
  if (poll === null) clearInterval(ticker);
  else show();
}

function again(after) {
  if (after !== null) timer = setTimeout(ask, after * 1000);
}

// --- the fragment ---

const known = new Map(); // what the server last sent of each part

// The fragment without what differs in every answer: the time, and the masked CSRF token.
function essence(part) {
  const copy = part.cloneNode(true);
  for (const changing of copy.querySelectorAll("#countdown, input[name=csrfmiddlewaretoken]")) changing.remove();
  return copy.outerHTML;
}

function remember(root) {
  for (const part of root.querySelectorAll("[data-part]")) known.set(part.dataset.part, essence(part));
}

// Replaces only what has changed, so that a selection, the focus and a screen reader's place stay where they are.
function render(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const headline = document.getElementById("headline").textContent.trim();
  for (const part of template.content.querySelectorAll("[data-part]")) {
    if (known.get(part.dataset.part) === essence(part)) continue;
    known.set(part.dataset.part, essence(part));
    const focused = document.activeElement?.id;
    live.querySelector(`[data-part="${part.dataset.part}"]`).replaceWith(part);
    if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
  }
  const newHeadline = document.getElementById("headline").textContent.trim();
  if (newHeadline !== headline) say(newHeadline);
}

readClock(live);
remember(live);
show();
if (poll !== null) {
  ticker = setInterval(tick, TICK);
  ask(); // the page may come from the browser's store, with an old time in it
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && ask());
  window.addEventListener("pageshow", (event) => event.persisted && ask());
  window.addEventListener("online", ask);
}
