"""Files that others wrote, byte for byte as they publish them, with their licences; see THIRD_PARTY.md.

lightweight-charts.js           TradingView Lightweight Charts 5.2.1, `dist/lightweight-charts.standalone.
                                production.js` of the npm package `lightweight-charts`
LICENSE-lightweight-charts      its licence (Apache-2.0)
NOTICE-lightweight-charts       its notice, which a page that uses it shows, with the link
"""
