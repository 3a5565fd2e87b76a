(() => {
  const root = document.documentElement;
  root.dataset.errors = root.dataset.charts = 0;
  const count = () => { root.dataset.errors = Number(root.dataset.errors) + 1; };
  addEventListener("error", count);
  addEventListener("unhandledrejection", count);
  addEventListener("securitypolicyviolation", count);
})();
