// The remaining times in the list of sessions: they were right when the server wrote them, and are counted down from
// there by a clock that nobody sets. It stands still while the computer sleeps, so a page that was away is asked anew.

const AWAY = 30_000; // milliseconds
const cells = [...document.querySelectorAll("[data-seconds]")];
let hiddenAt = null;

function clock(seconds) {
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

function tick() {
  const passed = performance.now() / 1000;
  for (const cell of cells) {
    cell.textContent = clock(Math.max(Math.ceil(Number(cell.dataset.seconds) - passed), 0));
  }
}

function refresh() {
  if (!document.querySelector("input.action-select:checked")) location.reload();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) hiddenAt = Date.now();
  else if (hiddenAt !== null && Math.abs(Date.now() - hiddenAt) > AWAY) refresh();
});
window.addEventListener("pageshow", (event) => event.persisted && refresh());

if (cells.length) setInterval(tick, 1000);
