// The coordinator writes a new data-beat every second. Without one the page is a picture of the past, and says so:
// no message tells of a process that hangs or a network that is away.
(() => {
  const PATIENCE_SECONDS = 4;
  let beat;
  let since = Date.now();
  setInterval(() => {
    const seen = document.querySelector("[data-beat]")?.dataset.beat;
    if (seen !== beat) {
      beat = seen;
      since = Date.now();
    }
    const seconds = (Date.now() - since) / 1000;
    const contact = document.getElementById("contact");
    const lost = seconds > PATIENCE_SECONDS;
    document.body.classList.toggle("stale", lost);
    if (contact) {
      contact.hidden = !lost;
      const when = new Date(since).toLocaleTimeString();
      contact.textContent = lost ? `No contact since ${when} (${Math.round(seconds)} s): what is shown is of then.` : "";
    }
  }, 500);
})();
