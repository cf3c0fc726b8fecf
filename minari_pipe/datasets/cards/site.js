const body = document.querySelector("table.list:last-of-type tbody");
const rows = [...body.rows].map((row, place) => ({row, place, values: JSON.parse(row.dataset.numbers)}));
const at = (id) => document.getElementById(id);
function show() {
  const words = at("q").value.toLowerCase().split(/\s+/);
  let count = 0;
  for (const {row} of rows) {
    const data = row.dataset;
    const is = (id) => !at(id).value || data[id] === at(id).value;
    row.hidden = !(is("environment") && is("license") && words.every((word) => data.text.includes(word)));
    count += row.hidden ? 0 : 1;
  }
  at("count").textContent = `${count} of ${rows.length}`;
}
function sort() {
  const key = at("sort").value;
  const value = (one) => (one.values[key] === null ? -Infinity : one.values[key]);
  rows.sort((a, b) => (key === "id" ? a.place - b.place : value(b) - value(a) || a.place - b.place));
  body.append(...rows.map((one) => one.row));
}
at("q").addEventListener("input", show);
for (const id of ["environment", "license"]) at(id).addEventListener("change", show);
at("sort").addEventListener("change", sort);
const form = document.querySelector("form.controls");
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
show();
sort();
