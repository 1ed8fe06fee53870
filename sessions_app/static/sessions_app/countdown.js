// Ticks the countdown, in the page and in the tab's title, and says when little time is left.
//
// The time is the server's. The browser's clock only measures what has passed since the server last told its own, so it
// does not matter what it shows; when it jumps (a sleep, a correction) the server is asked at once.

const TICK = 1000;
const JUMP = 3000; // milliseconds between two ticks that cannot be a busy browser
const LEVELS = [600, 300, 60, 0]; // seconds left; the style sheet and `Shown.level` know them too
const SIGNS = { 600: "⏳", 300: "⚠", 60: "‼" };

const live = document.getElementById("live");
const announcer = document.getElementById("announcer");
const title = document.title;

let ahead = 0; // of the browser's clock: the server's time minus ours
let expires = 0;
let left = Infinity; // seconds, when last shown
let said; // the level that was last announced, or that the page was loaded with
let unsure = false; // between a jump and the server's answer
let lastTick = Date.now();

function tick() {
  const now = Date.now();
  if (Math.abs(now - lastTick - TICK) > JUMP) {
    unsure = true;
    ask();
  }
  lastTick = now;
  show();
}

function show() {
  const clock = document.getElementById("countdown");
  if (!clock) return showHeadline();
  const before = left;
  left = Math.max(Math.ceil((expires - Date.now() - ahead) / 1000), 0);
  clock.textContent = digits(left);
  showLevel(clock.closest("[data-level]"));
  if (before > 0 && left === 0) ask();
}

function showHeadline() {
  left = Infinity;
  document.title = `${document.getElementById("headline").textContent.trim()} · ${title}`;
}

// Colour and text are the style sheet's and the page's own: both hang on data-level.
function showLevel(box) {
  const level = LEVELS.findLast((mark) => left <= mark) ?? Infinity;
  const name = level === Infinity ? "" : String(level);
  if (box.dataset.level !== name) box.dataset.level = name;
  document.title = `${SIGNS[level] ? `${SIGNS[level]} ` : ""}${digits(left)} · ${title}`;
  if (unsure) return;
  // Once for each level, also when a background tab or a sleep went past its beginning; not at load.
  if (said !== undefined && level < said && left) announcer.textContent = box.querySelector(`.level-${name}`).textContent;
  said = level;
}

function digits(total) {
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(total / 3600);
  const minutes = Math.floor(total / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(total % 60)}` : `${minutes}:${two(total % 60)}`;
}

function ask() {
  live.dispatchEvent(new Event("ask"));
}

function setClock(now, until, delay = 0) {
  ahead = now + delay - Date.now();
  expires = until;
  show();
}

const clock = document.getElementById("countdown");
if (clock) setClock(Number(clock.dataset.now), Number(clock.dataset.expires));
else show();
live.addEventListener("answer", ({ detail }) => {
  unsure = false;
  setClock(detail.now, detail.expires, detail.delay);
});
live.addEventListener("silence", () => (unsure = false));
setInterval(tick, TICK);
