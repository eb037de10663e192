// The password becomes a cookie that scripts cannot read; then the browser goes where it was going.

const form = document.getElementById("login");
const problem = document.getElementById("login-problem");

/** Where to go on: the address that `next` names, if it is one of this server, else the page. */
function onward() {
  const home = new URL("./", location.href);
  try {
    const next = new URL(new URLSearchParams(location.search).get("next") || `./${location.hash}`, home);
    return next.origin === location.origin ? next.href : home.href;
  } catch {
    return home.href;
  }
}

function tell(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = document.getElementById("submit");
  button.disabled = true;
  tell("");
  try {
    const response = await fetch("api/auth/login", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ password: form.password.value }),
    });
    const said = await response.json();
    if (response.ok) return location.replace(onward());
    tell(said.error || said.detail || `The gateway answered ${response.status}.`);
    form.password.select();
  } catch {
    tell("The gateway cannot be reached.");
  } finally {
    button.disabled = false;
  }
});

const status = await fetch("api/auth/status").then((response) => response.json(), () => ({}));
if (status.auth_enabled === false || status.logged_in) location.replace(onward());
