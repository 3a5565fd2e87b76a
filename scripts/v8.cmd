@echo off
rem Sets up what v8 needs, then runs its command line: scripts\v8 predict runs\aligned --series BTCUSDT-15m
rem `scripts\v8 install onnx` adds an extra of setup.cfg to what is installed.
rem The virtual environment is .venv beside this repository, or the folder that V8_VENV names.
setlocal
rem `python -m` looks for modules in the working folder first: an html.py that lies there would run.
set "PYTHONSAFEPATH=1"
set "REPOSITORY=%~dp0.."
if not defined V8_EXTRAS set "V8_EXTRAS=[app]"
if not defined V8_VENV set "V8_VENV=%REPOSITORY%\.venv"
if not exist "%V8_VENV%\Scripts\python.exe" (
    py -3 -c "import sys; sys.exit(sys.version_info < (3, 11))" || (
        echo error: needs Python 3.11 or newer; got an older one or none. Install it from python.org. 1>&2
        exit /b 1
    )
    py -3 -m venv "%V8_VENV%" || exit /b 1
)
fc /b "%REPOSITORY%\setup.cfg" "%V8_VENV%\.v8-setup.cfg" >nul 2>&1 || (
    echo Installing what v8 needs into %V8_VENV%, once; this takes some minutes. 1>&2
    "%V8_VENV%\Scripts\python.exe" -m pip install --disable-pip-version-check --constraint "%REPOSITORY%\constraints.txt" --editable "%REPOSITORY%%V8_EXTRAS%" || exit /b 1
    copy /y "%REPOSITORY%\setup.cfg" "%V8_VENV%\.v8-setup.cfg" >nul
)
if "%~1"=="install" goto extras
set "V8_COMMAND=scripts\v8"
"%V8_VENV%\Scripts\python.exe" -m v8 %*
exit /b %ERRORLEVEL%
:extras
shift
if "%~1"=="" exit /b 0
"%V8_VENV%\Scripts\python.exe" -m pip install --disable-pip-version-check --constraint "%REPOSITORY%\constraints.txt" --editable "%REPOSITORY%[%~1]" || exit /b 1
goto extras
