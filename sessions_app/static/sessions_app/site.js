// What every page has: times in the reader's zone, buttons that copy, and a menu that closes.

// --- the reader's zone ---

const YEAR = 365 * 24 * 60 * 60; // seconds
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

function cookie(name) {
  const found = document.cookie.split("; ").find((pair) => pair.startsWith(`${name}=`));
  return found?.slice(name.length + 1);
}

// The server writes the times: it is told the zone once, and asked again if this page has times in another one. An
// answer to a form (it has no data-zone) is left alone, and so is a browser that keeps no cookies.
function tellZone() {
  if (!zone || cookie("zone") === zone) return;
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `zone=${zone}; path=/; max-age=${YEAR}; samesite=lax${secure}`;
  const shown = document.body.dataset.zone;
  if (shown && shown !== zone && cookie("zone") === zone) location.reload();
}

// --- commands to copy ---

const COPIED = 2000; // milliseconds for which the button says so
const model = document.getElementById("copy-button");

function offerCopies() {
  if (!navigator.clipboard || !model) return; // the clipboard is closed to pages without HTTPS
  for (const block of document.querySelectorAll("main pre:not(.command > pre)")) {
    const box = document.createElement("div");
    box.className = "command";
    block.replaceWith(box);
    box.append(block, model.content.firstElementChild.cloneNode(true));
  }
}

async function copy(button) {
  await navigator.clipboard.writeText(button.previousElementSibling.innerText.trimEnd());
  const words = button.textContent;
  button.textContent = button.dataset.copied;
  button.disabled = true;
  document.getElementById("announcer").textContent = button.dataset.copied;
  setTimeout(() => {
    button.textContent = words;
    button.disabled = false;
    button.focus({ preventScroll: true });
  }, COPIED);
}

// --- menus ---

function closeMenus(event) {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (event.key !== "Escape" && menu.contains(event.target)) continue;
    menu.open = false;
    if (event.key === "Escape") menu.querySelector("summary").focus();
  }
}

tellZone();
offerCopies();
document.addEventListener("changed", offerCopies); // a part of the page came anew
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (button) copy(button);
  closeMenus(event);
});
document.addEventListener("keydown", (event) => event.key === "Escape" && closeMenus(event));
